"""The matrix of sleeping sessions notices bugs: under each mutant the cell that it names fails, and not without it."""

from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest

from faults.matrix.sleepers import MUTANTS, ROWS
from faults.matrix.sleeping import awake, probe
from faults.matrix.table import CROSS, PASSED
from faults.run import Run


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_cell_fails_under_the_mutant_that_breaks_it_and_only_then(name: str) -> None:
    mutant = MUTANTS[name]
    row, _, column = mutant.law.partition(CROSS)
    with TemporaryDirectory(prefix="leasehold-faults-", ignore_cleanup_errors=True) as place:
        Path(place).chmod(0o755)  # servers run as another user
        with Run("sleeping", seed=1, full=False, folder=Path(place), lease=4.0) as run:
            world = awake(run)
            assert probe(world, [row], [column]) == {(row, column): PASSED}
            with world.connect() as connection:
                mutant.install(connection)
            assert probe(world, [row], [column])[row, column] != PASSED


def test_each_function_that_a_role_may_call_has_a_row(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        granted = connection.execute(
            "select distinct p.proname from pg_proc p cross join lateral aclexplode(p.proacl) a"
            " join pg_roles r on r.oid = a.grantee and r.rolname like 'leasehold\\_%'"
            " where p.pronamespace = 'leasehold'::regnamespace and p.proname !~ '_v[0-9]+$'"
        ).fetchall()
    assert len(granted) > 80
    assert {name for (name,) in granted} - {call.partition("(")[0] for call in ROWS.values()} == set()
