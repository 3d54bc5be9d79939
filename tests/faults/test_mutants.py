"""The gate before the fault suite: seeded bugs in our own SQL are found by the checker, and nothing without one.

Each mutant runs the whole workload in a database of its own and is judged by its history alone.
"""

from pathlib import Path
from typing import Any

import psycopg
import pytest

from faults.checker import Verdict, check
from faults.interleavings import PARTS
from faults.mutants import MUTANTS, Edit, Mutant
from faults.workload import PATIENCE, run
from tests.survival.conftest import rounds


def verdict_on(dsn: str, home: Path, *, mutant: Mutant | None = None, seed: int = 1) -> Verdict:
    if mutant is not None:
        with connect(dsn) as connection:
            mutant.install(connection)
    run(dsn, home, PARTS, seed=seed, patience=PATIENCE if mutant is None else mutant.patience)
    return check(home)


def connect(dsn: str) -> psycopg.Connection[Any]:
    return psycopg.connect(dsn, autocommit=True, options="-c search_path=leasehold")


@pytest.mark.parametrize("seed", range(1, rounds(3, 50) + 1))
def test_the_system_as_it_is_passes(dsn: str, tmp_path: Path, seed: int) -> None:
    verdict = verdict_on(dsn, tmp_path, seed=seed)
    assert verdict.passed, str(verdict)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught_by_the_law_that_it_breaks(dsn: str, tmp_path: Path, name: str) -> None:
    mutant = MUTANTS[name]
    verdict = verdict_on(dsn, tmp_path, mutant=mutant)
    assert verdict.invalid is None, str(verdict)
    assert mutant.law in verdict.broken, str(verdict)


def test_a_mutant_whose_place_is_gone_says_so_and_does_not_pass_as_caught(dsn: str) -> None:
    outdated = Mutant(law="no_phantoms", edits=[Edit("sweep_v1", "what no longer stands there", "")])
    with connect(dsn) as connection, pytest.raises(LookupError, match="sweep_v1 no longer contains"):
        outdated.install(connection)
