"""The queues with their rates, and whether they will drain."""

import asyncio
from dataclasses import dataclass
from typing import Final

from leasehold.db.store import QueueRow, Rate
from leasehold.web import facts
from leasehold.web.visit import Visit
from leasehold.web.words import age

OLD: Final = 60.0
"""Seconds after which a job that could run counts as waiting for long."""

_TONES: Final = {
    "empty": "idle",
    "steady": "good",
    "clearing": "good",
    "waiting": "warn",
    "paused": "warn",
    "blocked": "warn",
    "growing": "bad",
    "unserved": "bad",
}
_ORDER: Final = {"bad": 0, "warn": 1, "good": 2, "idle": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """A queue as the pages show it."""

    row: QueueRow
    oldest_age: float | None
    arrivals: float | None
    """Jobs a second; None: not known."""
    departures: float | None
    verdict: str
    """Whether it drains, in words."""
    tone: str
    """`good`, `warn`, `bad` or `idle`."""
    series: tuple[int, ...]
    """What finished in each of the last minutes, for a sparkline."""


async def queue_facts(visit: Visit) -> list[QueueFacts]:
    """Every queue, those that need attention first."""
    rows, rates = await asyncio.gather(facts.queues(visit), facts.rates(visit))
    by_name = {rate.queue: rate for rate in rates}
    found = [_joined(row, by_name.get(row.queue), visit) for row in rows]
    return sorted(found, key=lambda one: (_ORDER[one.tone], one.row.queue))


def _joined(row: QueueRow, rate: Rate | None, visit: Visit) -> QueueFacts:
    oldest = age(row.oldest_ready_at, visit.now)
    if rate is None:
        verdict, tone = ("paused", "warn") if row.paused_at is not None else ("empty", "idle")
    else:
        judged = rate.verdict
        verdict, tone = judged.words, _TONES[judged.outlook]
    if tone == "idle" and row.running:
        tone = "good"
    if tone == "good" and oldest is not None and oldest > OLD:
        tone = "warn"
    return QueueFacts(
        row=row,
        oldest_age=oldest,
        arrivals=None if rate is None else rate.in_rate,
        departures=None if rate is None else rate.out_rate,
        verdict=verdict,
        tone=tone,
        series=tuple(rate.recent or ()) if rate is not None else (),
    )
