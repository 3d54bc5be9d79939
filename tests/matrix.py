"""Runs the tests that touch a database on every other PostgreSQL found here: `make test-matrix`.

The embedded 18 is what `make test` uses. 16 comes with the fallback wheel, 15 and 17 from the system where they
are installed; one that is missing is named, and does not count as passed. `--quick` leaves out what hardly depends on
the server's version, and on all but the oldest runs only what differs between versions.
"""

import os
import subprocess
import sys
from collections.abc import Iterator

from leasehold.embedded import find_binaries
from leasehold.errors import EmbeddedError

OTHERS = ("17", "16", "15")
PARTS = (
    "tests/sql",
    "tests/model",
    "tests/security",
    "tests/db",
    "tests/worker",
    "tests/supervise",
    "tests/survival",
    "tests/schedules",
)
RACES = (
    "claim_job",
    "clock",
    "deadlocks",
    "exclusive",
    "fencing",
    "idempotency",
    "limits_keys",
    "limits_races",
    "renewal",
    "sleeping",
)
"""Files of tests/sql in which crowds and locks meet, and which take longest: their functions run in the others too."""
QUICK = (
    "tests/sql",
    *(f"--ignore=tests/sql/test_{name}.py" for name in RACES),
    "tests/model/test_model.py",
    "tests/security",
    "tests/db/test_migrate.py",
    "tests/worker/test_outcomes.py",
    "tests/schedules/test_claim.py",
    "tests/schedules/test_fire.py",
    "tests/schedules/test_put.py",
)
"""What CI has time for: every function, since what PostgreSQL makes of it could differ."""
BETWEEN = (
    "tests/sql/test_states.py",
    "tests/sql/test_claim.py",
    "tests/sql/test_enqueue.py",
    "tests/db/test_migrate.py",
)
"""And on a version between the oldest and the newest, which both run more."""


def main() -> int:
    arguments = [argument for argument in sys.argv[1:] if argument != "--quick"]
    quick = "--quick" in sys.argv
    failed = []
    here = list(_found())
    for version in here:
        parts = PARTS if not quick else QUICK if version == here[-1] else BETWEEN
        print(f"PostgreSQL {version}:", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", *arguments, *parts]
        if subprocess.run(command, env={**os.environ, "LEASEHOLD_EMBEDDED": version}, check=False).returncode:
            failed.append(version)
    if failed:
        print(f"failed on PostgreSQL {', '.join(failed)}")
    return 1 if failed else 0


def _found() -> Iterator[str]:
    for version in OTHERS:
        try:
            find_binaries(version)
        except EmbeddedError as error:
            print(f"PostgreSQL {version}: not run, {error}", flush=True)
        else:
            yield version


if __name__ == "__main__":
    sys.exit(main())
