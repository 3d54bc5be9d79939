"""The matrix of sleeping sessions notices bugs: under each mutant the cell that it names fails, and not without it."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from faults.matrix.sleepers import MUTANTS
from faults.matrix.sleeping import awake, probe
from faults.matrix.table import PASSED
from faults.run import Run


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_cell_fails_under_the_mutant_that_breaks_it_and_only_then(name: str) -> None:
    mutant = MUTANTS[name]
    row, _, column = mutant.law.partition(" × ")  # noqa: RUF001
    with TemporaryDirectory(prefix="leasehold-faults-", ignore_cleanup_errors=True) as place:
        Path(place).chmod(0o755)  # servers run as another user
        with Run("sleeping", seed=1, full=False, folder=Path(place), lease=4.0) as run:
            world = awake(run)
            assert probe(world, [row], [column]) == {(row, column): PASSED}
            with world.connect() as connection:
                mutant.install(connection)
            assert probe(world, [row], [column])[row, column] != PASSED
