"""The command line: data on standard output, talk on standard error.

Exit codes: 0 done, 1 a negative result, 2 wrong usage or settings, 3 the database does not answer,
4 the schema is not the one this release knows, 75 a worker wants to be replaced (to its supervisor), 130 interrupted.
"""

from leasehold.cli.app import main

__all__ = ["main"]
