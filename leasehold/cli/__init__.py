"""The command line: results on standard output, messages on standard error.

Exit codes: 0 done, 1 a negative result, 2 wrong usage or settings, 3 the database does not answer,
4 the schema is not the one this release knows, 75 a worker wants to be replaced (to its supervisor), 130 interrupted.
"""

import os
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit, also at a Ctrl-C while it is imported, which takes a while."""
    try:
        from leasehold.cli.app import main as run  # noqa: PLC0415
    except KeyboardInterrupt:
        os.write(2, b"interrupted\n")
        sys.exit(130)
    run(argv)
