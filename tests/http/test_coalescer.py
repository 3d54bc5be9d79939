"""An item that arrives while a sender is about to end is sent all the same, without waiting for the next item.

Such a moment lasts one turn of the event loop, so there are thousands here, with a database that only takes turns.
"""

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from leasehold.db.store import Seen
from leasehold.http.settings import ApiSettings
from leasehold.http.submitter import Submission, Submitter
from leasehold.http.waiting import Watcher
from leasehold.operate.caller import ANONYMOUS

NOW = datetime.now(UTC)


def seen(job_id: uuid.UUID) -> Seen:
    return Seen(job_id, "K", "default", "queued", "PENDING", None, None, None, NOW, NOW, NOW, None)


class Store:
    """Calls are their own answers."""

    def statuses(self, ids: list[uuid.UUID]) -> list[Seen]:
        return [seen(job_id) for job_id in ids]

    def submit_many(self, jobs: str, **_: Any) -> list[Seen]:
        return [seen(uuid.uuid4()) for _ in range(jobs.count('"id"'))]

    def accept_many(self, ids: list[uuid.UUID], **_: Any) -> list[Seen]:
        return self.statuses(ids)

    submit_each = submit_many
    accept_each = accept_many


class Turns:
    """A database that answers after a few turns of the loop."""

    wait = 1.5
    store = Store()

    def __init__(self) -> None:
        self.chance = random.Random(1)

    async def arun(self, call: list[Seen], _deadline: float | None = None) -> list[Seen]:
        await self.turns(3)
        return call

    async def anew_ids(self, count: int) -> list[uuid.UUID]:
        return [uuid.uuid4() for _ in range(count)]

    async def turns(self, most: int) -> None:
        for _ in range(self.chance.randrange(most)):
            await asyncio.sleep(0)


async def crowd(database: Turns, ask: Callable[[], Awaitable[Any]]) -> None:
    """Four at a time, each at a moment of its own; none may be left waiting."""

    async def one() -> None:
        await database.turns(8)
        await ask()

    for number in range(500):
        try:
            async with asyncio.timeout(60):
                await asyncio.gather(*(one() for _ in range(4)))
        except TimeoutError:
            pytest.fail(f"a request waits for ever, in round {number}")


@pytest.mark.parametrize("senders", [1, 2])
async def test_no_submission_is_left_behind_by_a_sender_that_ends(senders: int) -> None:
    database: Any = Turns()
    submitter = Submitter(database, ApiSettings(senders=senders))
    await crowd(database, lambda: submitter.submit(Submission("k", '"kind":"K"}', ANONYMOUS)))


@pytest.mark.parametrize("senders", [1, 2])
async def test_no_read_is_left_behind_by_a_sender_that_ends(senders: int) -> None:
    database: Any = Turns()
    watcher = Watcher(database, ApiSettings(senders=senders))
    await crowd(database, lambda: watcher.read(uuid.uuid4()))
