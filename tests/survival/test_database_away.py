"""PostgreSQL stopped and killed under load."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from faults.waiting import astays, auntil, until
from leasehold.db.migrations.migrate import migrate
from leasehold.embedded import EmbeddedServer
from tests.survival.conftest import Sql, connect, one, ready, rounds, worker
from tests.survival.tasks import TABLES
from tests.timing import bound


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_workers_outlive_the_database_and_go_on_when_it_returns(tmp_path: Path, how: str) -> None:
    """A server of its own, because it is taken down; both workers must still be there afterwards."""
    away = rounds(4, 20)
    jobs = rounds(600, 3000)
    with EmbeddedServer(tmp_path / "home", settings={"max_connections": 50}) as server:
        server.ensure_database("away")
        dsn = server.dsn("away")
        migrate(dsn)
        sql = _open(dsn)
        sql.execute("set search_path = public; " + TABLES + "; set search_path = leasehold, public")
        with worker(dsn, "--slots", "10") as first, worker(dsn, "--slots", "10") as second:
            await ready(sql, 2)
            sql.execute(
                """select enqueue('nap', '{"seconds": 0.05}', max_attempts => 5) from generate_series(1, %s)""", [jobs]
            )
            await auntil(lambda: one(sql, "select count(*) from jobs where state = 'success'") > jobs // 10)
            sql.close()
            postmaster = int((server.data / "postmaster.pid").read_text().splitlines()[0])
            os.kill(postmaster, signal.SIGKILL if how == "killed" else signal.SIGINT)
            await auntil(lambda: not Path(f"/proc/{postmaster}").exists())
            await astays(lambda: (first.poll(), second.poll()) == (None, None), "both workers live", seconds=away)
            server.start()
            sql = _open(dsn)
            done = one(sql, "select count(*) from jobs where state = 'success'")
            more = "select count(*) > %s from jobs where state = 'success'"
            await auntil(lambda: one(sql, more, done + 20), within=bound(5))
            await auntil(lambda: one(sql, "select count(*) from jobs where state = 'success'") == jobs, within=90)
            assert (first.poll(), second.poll()) == (None, None)
            assert one(sql, "select max(attempt) from jobs") <= 2
            assert one(sql, "select count(*) from attempts where outcome not in ('lease_expired', 'released')") == 0
        sql.close()


def _open(dsn: str) -> Sql:
    """Connect, as soon as the server lets us."""

    def opened() -> Sql | None:
        with suppress(psycopg.OperationalError):
            return connect(dsn)
        return None

    return until(opened, "the database takes connections")
