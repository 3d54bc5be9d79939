"""What the tests of the SQL API share: sessions, crowds of them, a clock that stands still, the invariants."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import Any, Self, TypeVar
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row, namedtuple_row
from psycopg.types.json import Jsonb

from faults.waiting import until

T = TypeVar("T")

DEADLINE = 90.0

# Each returns the rows that break a law.
INVARIANTS = {
    "running without a lease, or a lease without running": """
        select id from jobs where (state = 'running') <> (lease_owner is not null and lease_expires_at is not null)""",
    "two current jobs of one exclusive key": """
        select exclusive_key from jobs where is_current group by exclusive_key having count(*) > 1""",
    "two running jobs of one exclusive key": """
        select exclusive_key from jobs where state = 'running' and exclusive_key is not null
        group by exclusive_key having count(*) > 1""",
    "parked with no job left that unparks it": """
        select j.id from jobs j where j.parked and j.parked_under is null and not exists (
          select from jobs o where o.exclusive_key = j.exclusive_key
            and (o.state = 'running' or o.state = 'queued' and (not o.parked or o.parked_under is not null)))
          and not exists (select from unpark_later u where u.exclusive_key = j.exclusive_key)""",
    "parked under no limit, or under one with no job left that unparks it": """
        select j.id from jobs j left join limits l on l.scope = 'key' and l.name = j.parked_under
        where j.parked and j.parked_under is not null and l.max_running is distinct from 0 and not exists (
          select from jobs o where starts_with(o.exclusive_key, l.name)
            and (o.state = 'running' or o.state = 'queued' and not o.parked))""",
    # Every claim but the one that runs, or the one that succeeded, has exactly one row in attempts.
    "attempts with a gap": """
        select j.id from jobs j
        where j.attempt - (j.state in ('running', 'success'))::int
            <> (select count(*) from attempts a where a.job_id = j.id)
           or exists (select from attempts a where a.job_id = j.id
             and a.attempt not between 1 and j.attempt - (j.state in ('running', 'success'))::int)""",
    "an attempt of no job": "select job_id from attempts a where not exists (select from jobs j where j.id = a.job_id)",
}


class Session(psycopg.Connection[Any]):
    """A connection that knows how to call the SQL API with named arguments."""

    def rows(self, function: str, **arguments: Any) -> list[Any]:
        """The rows that a function returns, as named tuples."""
        named = ", ".join(f"{name} => %({name})s" for name in arguments)
        values = {name: _adapted(value) for name, value in arguments.items()}
        with self.cursor(row_factory=namedtuple_row) as cursor:
            return cursor.execute(f"select * from {function}({named})", values).fetchall()

    def column(self, function: str, **arguments: Any) -> list[Any]:
        return [row[0] for row in self.rows(function, **arguments)]

    def one(self, function: str, **arguments: Any) -> Any:
        (row,) = self.rows(function, **arguments)
        return row[0]

    def value(self, query: str, *arguments: Any) -> Any:
        found = self.execute(query, arguments or None).fetchone()
        assert found is not None
        return found[0]

    def values(self, query: str, *arguments: Any) -> list[Any]:
        return [row[0] for row in self.execute(query, arguments or None).fetchall()]

    def job(self, job_id: UUID) -> dict[str, Any]:
        """The whole row, its version (xmin, ctid) included: equal means that nothing wrote it."""
        with self.cursor(row_factory=dict_row) as cursor:
            found = cursor.execute(
                "select xmin::text, ctid::text as place, j.* from jobs j where id = %s", [job_id]
            ).fetchone()
        assert found is not None
        return found

    def attempts(self, job_id: UUID) -> list[Any]:
        with self.cursor(row_factory=namedtuple_row) as cursor:
            return cursor.execute("select * from attempts where job_id = %s order by attempt", [job_id]).fetchall()

    def everything(self) -> list[tuple[Any, ...]]:
        """Every row of every table with its version: equal means that nothing was written at all."""
        return [
            row
            for table in ("jobs", "attempts", "kinds", "workers")
            for row in self.execute(f"select '{table}', xmin::text, t::text from {table} t order by t::text").fetchall()
        ]

    def mutate(self, function: str, old: str, new: str) -> None:
        """Put a deliberately broken version in a function's place, to see that a test notices."""
        text = self.value("select pg_get_functiondef(%s::regproc)", f"leasehold.{function}")
        assert old in text, f"{function} no longer contains {old!r}"
        self.execute(text.replace(old, new))


def _adapted(value: Any) -> Any:
    if isinstance(value, dict) or (isinstance(value, list) and value and isinstance(value[0], dict)):
        return Jsonb(value)
    return value


class Database:
    """A migrated database of one test."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._sessions = ExitStack()

    def connect(self) -> Session:
        """An autocommitting superuser's session, closed with the test."""
        session = Session.connect(
            self.dsn, autocommit=True, options="-c search_path=leasehold -c deadlock_timeout=100ms"
        )
        return self._sessions.enter_context(session)

    def crowd(self, size: int, act: Callable[[Session, int], T]) -> list[T]:
        """Let `size` sessions act at the same time; returns what each one returned."""
        sessions = [self.connect() for _ in range(size)]
        barrier = threading.Barrier(size)

        def one(place: int) -> T:
            barrier.wait(DEADLINE)
            return act(sessions[place], place)

        with ThreadPoolExecutor(size) as pool:
            futures = [pool.submit(one, place) for place in range(size)]
            results = [future.result() for future in futures]
        for session in sessions:
            session.close()
        return results

    def close(self) -> None:
        self._sessions.close()

    @staticmethod
    def until_blocked(observer: Session, pids: Sequence[int]) -> None:
        """Wait until all these backends wait for a lock."""
        query = "select count(*) from unnest(%s::int[]) p where cardinality(pg_blocking_pids(p)) > 0"
        until(lambda: observer.value(query, list(pids)) == len(pids), f"{len(pids)} backends wait for a lock")

    @staticmethod
    def assert_consistent(session: Session) -> None:
        broken = {law: rows for law, query in INVARIANTS.items() if (rows := session.values(query))}
        assert broken == {}

    @staticmethod
    def insert(session: Session, jobs: int, **columns: str) -> list[UUID]:
        """Queued jobs straight into the table: far faster than the API. Columns are SQL expressions over `n`."""
        columns = {"kind": "'k'", "state": "'queued'", "max_attempts": "5", **columns}
        return session.values(
            f"insert into jobs ({', '.join(columns)}) select {', '.join(columns.values())}"
            f" from generate_series(1, {jobs}) n returning id"
        )


class TestClock:
    """The clock of one database, moved by hand."""

    __test__ = False

    def __init__(self, session: Session) -> None:
        self._session = session
        session.execute("create table hands (now timestamptz not null)")
        session.execute("insert into hands values ('2031-05-17 12:00:00+00')")
        session.execute(
            "create or replace function clock() returns timestamptz language sql volatile"
            " as $$ select now from leasehold.hands $$"
        )

    @property
    def now(self) -> datetime:
        return self._session.value("select now from hands")

    def advance(self, seconds: float) -> None:
        self._session.execute("update hands set now = now + %s", [timedelta(seconds=seconds)])


@pytest.fixture
def db(dsn: str) -> Iterator[Database]:
    database = Database(dsn)
    try:
        yield database
    finally:
        database.close()


@pytest.fixture
def session(db: Database) -> Session:
    return db.connect()


@pytest.fixture
def clock(session: Session) -> TestClock:
    """Time stands still, and moves only when the test moves it."""
    return TestClock(session)


@pytest.fixture(scope="module")
def module_db(admin, migrated: str) -> Iterator[Database]:
    with admin.database(template=migrated) as name:
        database = Database(admin.server.dsn(name))
        try:
            yield database
        finally:
            database.close()


@pytest.fixture(scope="module")
def module_session(module_db: Database) -> Session:
    return module_db.connect()


@pytest.fixture
def shared(module_session: Session) -> Session:
    """A session of a database that the tests of a module share, emptied: for the many small ones."""
    module_session.execute("truncate jobs, attempts, kinds, workers")
    return module_session


class Gate:
    """Holds sessions back inside the server and lets them all go at once: a barrier without Python in it."""

    NUMBER = 4711
    SQL = f"pg_advisory_xact_lock_shared({NUMBER})"

    def __init__(self, keeper: Session) -> None:
        self._keeper = keeper

    def __enter__(self) -> Self:
        self._keeper.execute("select pg_advisory_lock(%s)", [self.NUMBER])
        return self

    def __exit__(self, *_: object) -> None:
        self._keeper.execute("select pg_advisory_unlock_all()")

    def wait_for(self, crowd: int) -> None:
        query = (
            "select count(*) from pg_locks where locktype = 'advisory' and objid = %s and not granted"
            " and database = (select oid from pg_database where datname = current_database())"
        )
        until(lambda: self._keeper.value(query, self.NUMBER) == crowd, f"{crowd} sessions at the gate")


@pytest.fixture
def gate(db: Database) -> Gate:
    return Gate(db.connect())
