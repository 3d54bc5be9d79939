"""What the tests of schedules share: the sessions and the clock of the SQL tests, and a scheduler on a database."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import psycopg
import pytest

from leasehold.db.connections.link import Link
from leasehold.db.connections.outage import Outage
from leasehold.db.store import Store
from leasehold.telemetry import Telemetry
from leasehold.upkeep.loop import Ports
from leasehold.upkeep.scheduler import Scheduler
from tests.sql.conftest import Database, Gate, Session, TestClock, clock, db, gate, session

__all__ = ["Database", "Gate", "Session", "TestClock", "clock", "db", "gate", "refused", "runs_of", "session"]


@contextmanager
def refused(code: str, message: str) -> Iterator[None]:
    """What is called here must be refused with this code and this constant message."""
    with pytest.raises(psycopg.Error) as caught:
        yield
    assert (caught.value.sqlstate, caught.value.diag.message_primary) == (code, message)


def claim(session: Session, key: str = "s", worker: str = "w", **more: Any) -> Any:
    (row,) = session.rows("schedule_claim", key=key, worker=worker, **more)
    return row


def fire(
    session: Session,
    claimed: Any,
    due: Sequence[datetime],
    following: datetime | None,
    key: str = "s",
    worker: str = "w",
    missed: int = 0,
) -> list[Any]:
    return session.rows(
        "schedule_fire", key=key, worker=worker, token=claimed.token, was=claimed.next_run_at, due=list(due),
        next_run_at=following, missed=missed,
    )  # fmt: skip


def stored(session: Session, key: str = "s") -> Any:
    (row,) = session.rows("schedule_list", key=key)
    return row


def runs_of(session: Session, key: str = "s") -> list[datetime]:
    """The due times for which a schedule has a job, in their order."""
    return session.values(
        "select (split_part(idempotency_key, ':' || %s || ':', 2))::timestamptz from jobs"
        " where starts_with(idempotency_key, 'schedule:' || %s || ':') order by 1",
        key,
        key,
    )


@pytest.fixture
async def scheduler(dsn: str) -> Any:
    """A scheduler that makes one round when the test wants it."""
    link = Link(dsn, name="scheduler")
    yield Scheduler(Ports("w", link, Store("leasehold"), Telemetry(), Outage()))
    await link.close()
