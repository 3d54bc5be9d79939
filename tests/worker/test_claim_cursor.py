"""Claims that go on where the last one ended, and what they must not overlook."""

import asyncio
import json
from typing import Any

import psycopg

from faults.waiting import auntil
from leasehold import App
from leasehold.db.store import ClaimedJob
from leasehold.worker.claimer import ClaimCursor
from tests.worker.conftest import working

Sql = psycopg.Connection[dict[str, Any]]


def job(number: int, *, queue: str = "default", kind: str = "k", priority: int = 0) -> ClaimedJob:
    return ClaimedJob(
        id=str(number), attempt=1, claim_id="c", kind=kind, queue=queue, payload="{}", retry_count=0, max_attempts=5,
        lease_seconds=15, priority=priority,
    )  # fmt: skip


def test_the_first_claim_scans_from_the_start() -> None:
    assert ClaimCursor().lanes(None, now=0) is None


def test_after_a_full_claim_the_next_goes_on_behind_the_last_job_of_each_queue_and_kind() -> None:
    cursor = ClaimCursor()
    given = [job(1, priority=5), job(2, kind="other"), job(3)]
    cursor.note(None, given, wanted=3, began=10.0, ended=10.01, from_start=True)
    lanes = json.loads(cursor.lanes(None, now=10.02) or "")
    assert lanes == [
        {"queue": "default", "kind": "k", "priority": 0, "id": "3"},
        {"queue": "default", "kind": "other", "priority": 0, "id": "2"},
    ]


def test_looks_from_the_start_take_a_tenth_of_the_time_and_come_every_second_at_least() -> None:
    cursor = ClaimCursor()
    cursor.note(None, [job(1)], wanted=1, began=10.0, ended=10.01, from_start=True)
    assert cursor.lanes(None, now=10.09) is not None
    assert cursor.lanes(None, now=10.11) is None
    cursor.note(None, [job(2)], wanted=1, began=20.0, ended=25.0, from_start=True)
    assert cursor.lanes(None, now=25.9) is not None
    assert cursor.lanes(None, now=26.1) is None


def test_continuing_does_not_delay_the_next_scan_from_the_start() -> None:
    cursor = ClaimCursor()
    cursor.note(None, [job(1)], wanted=1, began=10.0, ended=10.1, from_start=True)
    cursor.note(None, [job(2)], wanted=1, began=10.2, ended=10.9, from_start=False)
    assert json.loads(cursor.lanes(None, now=10.95) or "")[0]["id"] == "2"
    assert cursor.lanes(None, now=11.1) is None


def test_a_claim_that_found_less_than_it_wanted_is_followed_by_a_scan_from_the_start() -> None:
    cursor = ClaimCursor()
    cursor.note(None, [job(1)], wanted=1, began=10.0, ended=10.1, from_start=True)
    cursor.note(None, [], wanted=1, began=10.2, ended=10.3, from_start=False)
    assert cursor.lanes(None, now=10.35) is None


def test_queues_that_take_turns_have_places_of_their_own() -> None:
    cursor = ClaimCursor()
    cursor.note(("a",), [job(1, queue="a")], wanted=1, began=10.0, ended=10.1, from_start=True)
    assert cursor.lanes(("b",), now=10.2) is None
    assert json.loads(cursor.lanes(("a",), now=10.2) or "")[0]["queue"] == "a"


async def test_jobs_put_in_front_of_a_busy_worker_are_not_overlooked(app: App, sql: Sql) -> None:
    """A deep backlog keeps the worker claiming; what is more urgent gets its turn all the same."""
    ran: list[str] = []

    @app.task(kind="flood")
    async def flood() -> None:
        await asyncio.sleep(0.005)

    @app.task(kind="rare")
    async def rare(name: str) -> None:
        ran.append(name)

    await app.aenqueue_many(flood.intent() for _ in range(20_000))
    async with working(app, slots=5):
        await auntil(lambda: sql.execute("select from jobs where state = 'success' limit 1").fetchone() is not None)
        await rare.using(priority=10).aenqueue("urgent")
        await auntil(lambda: "urgent" in ran)
        assert sql.execute("select count(*) from jobs where state = 'queued'").fetchone() != {"count": 0}
