"""The matrices of the fault suite as samples in which each row and each column occurs. `make faults` runs all cells.

And each with a seeded bug: a matrix in which nothing fails proves nothing until a cell of it has been seen to fail.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest

from faults.__main__ import run
from faults.fleet import Fleet
from faults.matrix import mortal
from faults.matrix.table import CROSS
from faults.mutants import UNNAMED_SETTING, UNREADABLE_TIMES, Mutant
from faults.servers import Server
from tests.faults.test_scenarios import hold

PASSING = ("frozen", "loops", "poison", "settings", "sleeping")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PASSING)
def test_no_cell_of_the_sample_fails(name: str) -> None:
    code, problems, text = hold(name)
    assert (code, problems) == (0, []), "\n".join([text, *problems])


def failed(name: str, cells: Sequence[Sequence[str]], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The problems that these cells, or rows, of the whole matrix find."""
    monkeypatch.setenv("FAULTS_CELLS", "|".join(f"^{re.escape(CROSS.join(cell))}$" for cell in cells))
    with TemporaryDirectory(prefix="leasehold-faults-", ignore_cleanup_errors=True) as place:
        Path(place).chmod(0o755)
        return run(name, seed=1, full=True, folder=Path(place)).problems


def install(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on each server has this bug."""
    prepare = Server.prepare

    def careless(self: Server) -> None:
        prepare(self)
        with psycopg.connect(self.embedded.dsn("faults"), options="-c search_path=leasehold") as connection:
            mutant.install(connection)

    monkeypatch.setattr(Server, "prepare", careless)


@pytest.mark.timeout(300)
def test_a_missing_entry_check_fails_its_cell_of_poison_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    install(UNREADABLE_TIMES, monkeypatch)
    guilty = ("infinity", "SQL enqueue: run at")
    innocent = [("now", "SQL enqueue: run at"), ("infinity", "SQL enqueue: payload"), ("infinity", "return")]
    problems = failed("poison", [guilty, *innocent], monkeypatch)
    assert len(problems) == 1, problems
    assert re.match(re.escape(CROSS.join(guilty)) + ": GET .* answers 500", problems[0]), problems


@pytest.mark.timeout(300)
def test_a_worker_whose_calls_have_no_deadline_fails_its_cell_of_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fleet, "program", "faults.matrix.careless")
    monkeypatch.setenv("FAULTS_BUG", "no call has a deadline")
    cell = ("worker: keeper", "freeze for 2 leases")
    problems = failed("frozen", [cell], monkeypatch)
    assert any(problem.startswith(f"{CROSS.join(cell)}: innocents were charged") for problem in problems), problems


@pytest.mark.timeout(300)
def test_a_worker_that_overlooks_its_dead_loop_fails_its_cell_of_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTS_BUG", "dead loops are overlooked")
    monkeypatch.setattr(mortal, "DIES_WITHIN", 10.0)
    guilty, innocent = ("loop Sweeper", "RuntimeError"), ("call upkeep", "08000")
    problems = failed("loops", [guilty, innocent], monkeypatch)
    assert problems == [f"{CROSS.join(guilty)}: the process lives on, with a dead loop"]


@pytest.mark.timeout(300)
def test_a_setting_that_doctor_does_not_name_fails_its_cells_of_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    install(UNNAMED_SETTING, monkeypatch)
    row = "default_transaction_read_only=on"
    problems = failed("settings", [(row,)], monkeypatch)
    assert any(problem.startswith(f"{row}{CROSS}start: doctor does not name it") for problem in problems), problems
