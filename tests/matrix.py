"""Runs the tests that touch a database on every other PostgreSQL found here: `make test-matrix`.

The embedded 18 is what `make test` uses. 16 comes with the fallback wheel, 15 and 17 from the system where they
are installed; one that is missing is named, and does not count as passed.
"""

import os
import subprocess
import sys

from leasehold.embedded import find_binaries
from leasehold.errors import EmbeddedError

OTHERS = ("17", "16", "15")
PARTS = ("tests/sql", "tests/model", "tests/security", "tests/db", "tests/worker")


def main() -> int:
    failed = []
    for version in OTHERS:
        try:
            find_binaries(version)
        except EmbeddedError as error:
            print(f"PostgreSQL {version}: not run, {error}", flush=True)
            continue
        print(f"PostgreSQL {version}:", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", *sys.argv[1:], *PARTS]
        if subprocess.run(command, env={**os.environ, "LEASEHOLD_EMBEDDED": version}, check=False).returncode:
            failed.append(version)
    if failed:
        print(f"failed on PostgreSQL {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
