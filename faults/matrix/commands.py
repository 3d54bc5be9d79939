"""Commands of `leasehold`: in this process, for there are hundreds of them, and some in processes of their own."""

import contextlib
import functools
import io
import subprocess
import sys

import typer.main

from faults.fleet import ROOT
from leasehold.cli.app import main

# What Typer makes of our functions is the same for every command, and takes longer than most of them.
typer.main.get_command = functools.cache(typer.main.get_command)


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


def program(arguments: list[str]) -> tuple[int, str]:
    """The same, really started."""
    made = subprocess.run(
        [sys.executable, "-m", "leasehold", *arguments], cwd=ROOT, capture_output=True, check=False, timeout=60
    )
    return made.returncode, (made.stdout + made.stderr).decode(errors="backslashreplace")
