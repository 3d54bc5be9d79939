"""Commands of `leasehold`, in this process: there are hundreds of them."""

import contextlib
import io

from leasehold.cli.app import main


def command(arguments: list[str]) -> tuple[int, str]:
    """How it ended, and all that it printed."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    code = 0
    failed = ""
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            main(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except Exception as error:  # noqa: BLE001 (to a user it would be a traceback)
        code, failed = 1, f"Traceback: {type(error).__name__}: {error}"
    out.seek(0)
    return code, out.read() + failed
