"""Says why a lease is gone. The worker only learns that it is no longer its own; that the job was cancelled, which is
no trouble, the database knows. It is asked after the task was stopped, and only then.
"""

import asyncio
import logging
from collections import deque
from typing import Final
from uuid import UUID

from leasehold.db.link import Link
from leasehold.db.store import ClaimedJob, Store
from leasehold.errors import LeaseholdError
from leasehold.worker import lines

logger = logging.getLogger(__name__)

_MOST: Final = 20
"""Jobs that are asked about in a row: where more are lost at once, it is not a person who cancels them one by one."""

_LAST_SECONDS: Final = 0.5
"""For the answer to the last question, when the worker ends."""


class Losses:
    """The lost leases of a worker, on their way to a line in the log."""

    def __init__(self, worker: str, link: Link, store: Store) -> None:
        self._worker = worker
        self._link = link
        self._store = store
        self._waiting: deque[tuple[ClaimedJob, bool]] = deque()
        self._saying: asyncio.Task[None] | None = None

    def add(self, job: ClaimedJob, *, started: bool) -> None:
        """This one is lost: a line about it follows as soon as it is known why."""
        self._waiting.append((job, started))
        if self._saying is None or self._saying.done():
            self._saying = asyncio.create_task(self._say())

    async def close(self) -> None:
        """The worker ends: say the rest, asked about or not."""
        if self._saying is not None and not self._saying.done():
            await asyncio.wait([self._saying], timeout=_LAST_SECONDS)
            self._saying.cancel()
        while self._waiting:
            job, started = self._waiting.popleft()
            lines.lost(self._worker, job, started=started)

    async def _say(self) -> None:
        left = _MOST
        while self._waiting:
            job, started = self._waiting[0]
            cancelled, why = False, None
            if left > 0:
                left -= 1
                try:
                    status = await self._link.run(self._store.status(UUID(job.id)))
                except LeaseholdError as error:
                    logger.debug("why leases are lost is not known: %s", error)
                    left = 0
                else:
                    cancelled = status is not None and status.status == "CANCELLED"
                    why = status.reason_detail if status is not None else None
            self._waiting.popleft()
            if cancelled:
                lines.cancelled(self._worker, job, why, started=started)
            else:
                lines.lost(self._worker, job, started=started)
