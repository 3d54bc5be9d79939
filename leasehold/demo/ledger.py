"""The demo's own bookkeeping: every job that was acknowledged must be there until it has ended."""

from uuid import UUID

from leasehold.db.database import Database

_BATCH = 500


class Ledger:
    """Remembers the jobs that were acknowledged, and checks that the database has them."""

    def __init__(self) -> None:
        self._open: dict[UUID, None] = {}
        self.acknowledged = 0
        self.done = 0
        self.dead = 0
        self.lost: set[UUID] = set()
        """Acknowledged, not ended, and not there: none, ever."""

    def promise(self, job: UUID) -> None:
        """Note a job whose enqueueing has returned."""
        self.acknowledged += 1
        self._open[job] = None

    async def query(self, database: Database) -> None:
        """Query the state of every job that has not ended."""
        waiting = list(self._open)
        for first in range(0, len(waiting), _BATCH):
            asked = waiting[first : first + _BATCH]
            states = {row.id: row.state for row in await database.arun(database.store.statuses(asked))}
            self.lost |= set(asked) - set(states)
            self.done += sum(state == "success" for state in states.values())
            self.dead += sum(state == "dead" for state in states.values())
            for job in asked:
                if states.get(job) in {None, "success", "dead"}:
                    self._open.pop(job)
