"""Databases whose functions can be stopped between any two statements."""

from collections.abc import Callable, Iterator

import pytest

from tests.interleavings.driver import DRAIN, Driver
from tests.interleavings.instrument import instrument
from tests.sql.conftest import Database, Session, TestClock

# Waits end when the driver lets the other session go on, and not because a busy machine is slow.
PATIENT = """
do $$
declare
  signature text;
begin
  for signature in
    select p.oid::regprocedure from pg_proc p
    where p.pronamespace = 'leasehold'::regnamespace and p.proconfig::text like '%lock_timeout%'
  loop
    execute format('alter function %s set lock_timeout = %L', signature, '1min');
  end loop;
end $$
"""


def prepared(dsn: str, change: Callable[[Session], None] = lambda _: None) -> Iterator[Driver]:
    """A driver of a database whose functions were changed first, and then given gates."""
    database = Database(dsn)
    try:
        session = database.connect()
        TestClock(session)
        session.execute(DRAIN)
        session.execute(PATIENT)
        change(session)
        assert instrument(session) > 200
        yield Driver(database)
    finally:
        database.close()


@pytest.fixture(scope="session")
def driver(admin, migrated: str) -> Iterator[Driver]:
    """One database for all pairs that this process tests."""
    with admin.database(template=migrated) as name:
        yield from prepared(admin.server.dsn(name))
