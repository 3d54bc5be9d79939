"""The queues with their rates, and whether they will drain."""

import asyncio
from dataclasses import dataclass
from typing import Final

from leasehold.db.store import QueueRow, Rate
from leasehold.operate import queues
from leasehold.web.visit import Visit

_TONES: Final = {"empty": "idle", "steady": "good", "clearing": "good", "growing": "bad", "unserved": "bad"}
"""Of the outlooks; all others need attention, but are not urgent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """A queue as the pages show it."""

    row: QueueRow
    rate: Rate | None
    oldest_age: float | None
    outlook: str
    tone: str  # `good`, `warn`, `bad` or `idle`


async def queue_facts(visit: Visit) -> list[QueueFacts]:
    """Return every queue, those that need attention first."""
    rows, rates = await asyncio.gather(visit.recent(queues.listed), visit.recent(queues.rates))
    by_name = {rate.queue: rate for rate in rates}
    found = [_joined(row, by_name.get(row.queue), visit) for row in rows]
    return sorted(found, key=lambda one: (("bad", "warn", "good", "idle").index(one.tone), one.row.queue))


def _joined(row: QueueRow, rate: Rate | None, visit: Visit) -> QueueFacts:
    ready_at = row.oldest_ready_at
    oldest = None if ready_at is None else max(0.0, (visit.now - ready_at).total_seconds())
    if rate is None:
        outlook, tone = ("paused", "warn") if row.paused_at is not None else ("empty", "idle")
    else:
        outlook, tone = rate.drain.words, _TONES.get(rate.drain.outlook, "warn")
    if tone == "idle" and row.running:
        tone = "good"
    if tone == "good" and oldest is not None and oldest > 60.0:  # one that could run waits for long
        tone = "warn"
    return QueueFacts(row=row, rate=rate, oldest_age=oldest, outlook=outlook, tone=tone)
