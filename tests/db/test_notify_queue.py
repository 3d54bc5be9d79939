"""A queue of notifications that is full: on a server of its own, where it is small."""

from pathlib import Path

import psycopg
import pytest

from leasehold.db.migrations.migrate import migrate
from leasehold.db.sqlstates import meaning_of
from leasehold.embedded import EmbeddedServer
from leasehold.errors import DatabaseUnavailable

FULL = psycopg.errors.ProgramLimitExceeded


def fill(sql: psycopg.Connection) -> None:
    """Notify until nothing more fits, not even a short one."""
    for size in (7000, 1000, 100, 1):
        try:
            for n in range(10_000):
                sql.execute("select pg_notify('x', repeat('y', %s) || %s)", [size, str(n)])
        except FULL:
            continue


def test_a_full_queue_is_named_with_its_cause_and_emptied_by_upkeep_once_nothing_holds_it_up(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    with psycopg.connect(server.dsn("postgres")) as connection:
        if connection.info.server_version < 170000:
            pytest.skip("the size of the queue cannot be set before PostgreSQL 17")
    settings = {"max_notify_queue_pages": 64, "fsync": False}
    with EmbeddedServer(tmp_path / "home", tcp=True, settings=settings) as small:
        dsn = small.dsn("postgres")
        migrate(dsn)
        with psycopg.connect(dsn, autocommit=True) as sql:
            with psycopg.connect(dsn) as listener:
                listener.execute("listen x")
                listener.commit()
                listener.execute("select 1")
                fill(sql)
                with pytest.raises(FULL) as full:
                    sql.execute("select leasehold.enqueue('K', '{}')")
                meaning = meaning_of(full.value)
                assert isinstance(meaning, DatabaseUnavailable)
                assert "LISTEN" in str(meaning.hint)
            sql.execute("select leasehold.upkeep()")
            sql.execute("select leasehold.enqueue('K', '{}')")
