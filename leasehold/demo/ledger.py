"""The demo's own bookkeeping: every job that was acknowledged must be there until it has ended."""

from collections.abc import Iterable
from uuid import UUID

from leasehold.db.pool import Database

_BATCH = 500


class Ledger:
    """Remembers what was promised, and looks whether the database keeps it."""

    def __init__(self) -> None:
        self._open: dict[UUID, None] = {}
        self.acknowledged = 0
        self.done = 0
        self.dead = 0
        self.lost: set[UUID] = set()
        """Acknowledged, not ended, and not there: none, ever."""

    def promise(self, job: UUID) -> None:
        """The job's enqueueing has returned."""
        self.acknowledged += 1
        self._open[job] = None

    async def look(self, database: Database) -> None:
        """Ask for everything that has not ended."""
        waiting = list(self._open)
        for first in range(0, len(waiting), _BATCH):
            asked = waiting[first : first + _BATCH]
            seen = await database.arun(database.store.statuses(asked))
            states = {row.id: row.state for row in seen}
            self._note(asked, states)

    def _note(self, asked: Iterable[UUID], states: dict[UUID, str]) -> None:
        for job in asked:
            match states.get(job):
                case None:
                    self.lost.add(job)
                case "success":
                    self.done += 1
                case "dead":
                    self.dead += 1
                case _:
                    continue
            self._open.pop(job)
