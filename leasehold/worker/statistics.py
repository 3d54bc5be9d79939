"""Counts what became of jobs, and writes that every ten seconds, when there is something.

Never the truth about jobs: what a killed worker has not written is lost.
"""

import asyncio
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any

from leasehold._clock import monotonic
from leasehold._histogram import CLASSES, count
from leasehold._logger import logger_of
from leasehold.db.store import ClaimedJob
from leasehold.errors import DatabaseUnavailable
from leasehold.upkeep.loop import PeriodicLoop, Ports

logger = logger_of(__name__)

_PERIOD = 10.0
"""Seconds from one tally to the next, as in the database."""


@dataclass(slots=True)
class _Counters:
    """The outcomes and durations of one queue and kind."""

    counts: Counter[str] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)
    runs: list[float] = field(default_factory=list)
    wait_classes: list[int] = field(default_factory=lambda: [0] * CLASSES)
    run_classes: list[int] = field(default_factory=lambda: [0] * CLASSES)

    def fold(self) -> None:
        """Count the durations."""
        self.wait_classes = list(map(add, self.wait_classes, count(self.waits)))
        self.run_classes = list(map(add, self.run_classes, count(self.runs)))
        self.waits.clear()
        self.runs.clear()


class Tally:
    """Counts the outcomes of jobs since it was last taken."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, str], _Counters] = defaultdict(_Counters)

    def finished(self, outcome: str, jobs: Iterable[ClaimedJob]) -> None:
        """Count jobs that ended alike: `success`, `failed`, `dead`, `snoozed`, `cancelled` or `released`."""
        groups: dict[tuple[str, str], list[ClaimedJob]] = {}
        queue = kind = None
        group: list[ClaimedJob] = []
        for job in jobs:  # neighbours are mostly alike, and a comparison costs a fifth of a lookup
            if job.kind != kind or job.queue != queue:
                queue, kind = job.queue, job.kind
                group = groups.setdefault((queue, kind), [])
            group.append(job)
        for key, group in groups.items():
            counters = self._counters[key]
            counters.counts[outcome] += len(group)
            if outcome == "dead":  # a job's last failure is a failure too
                counters.counts["failed"] += len(group)
            if outcome != "released":  # one that was released has not run, or not to an end
                counters.waits += [job.waited for job in group]
                counters.runs += [job.ran for job in group]
                if len(counters.runs) >= 2000:  # few enough to keep, enough to make counting cheap
                    counters.fold()

    def reported(
        self, jobs: Sequence[ClaimedJob], reports: Sequence[Mapping[str, Any]], states: Mapping[str, str]
    ) -> None:
        """Count reported outcomes; `states` are those of the jobs whose report counts."""
        ends: dict[str, list[ClaimedJob]] = defaultdict(list)
        for job, report in zip(jobs, reports, strict=True):
            if job.id in states:
                dead = report["outcome"] == "failed" and states[job.id] == "dead"
                ends["dead" if dead else report["outcome"]].append(job)
        for outcome, group in ends.items():
            self.finished(outcome, group)

    def take(self) -> list[dict[str, Any]]:
        """Return the rows for the database, and start again."""
        taken, self._counters = self._counters, defaultdict(_Counters)
        rows = []
        for (queue, kind), counters in taken.items():
            counters.fold()
            counted = {"waits": counters.wait_classes, "runs": counters.run_classes}
            rows.append({"queue": queue, "kind": kind, **counters.counts, **counted})
        return rows


class Statistician(PeriodicLoop):
    """The loop that writes tallies. One that was not answered is sent again, under its number."""

    _PART = "statistics"

    def __init__(self, ports: Ports, *, tally: Tally) -> None:
        super().__init__(ports)
        self._tally = tally
        self._number = 0
        self._pending: tuple[float, str] | None = None
        self._began = monotonic()
        # After the end of the database's ten seconds: not all workers write at once.
        self._spread = random.uniform(0.2, 2.0)  # noqa: S311 (spread, not secrecy)
        self._turn = asyncio.Lock()

    async def round(self) -> float:
        """Write what there is now; return the seconds until the next tally. Without any, nothing is sent."""
        async with self._turn:
            self._pending = self._pending or self._gather()
            if self._pending is None:
                return _PERIOD
            middle, rows = self._pending
            age, pause = min(monotonic() - middle, 86400.0), _PERIOD
            try:
                call = self._store.statistics_add(self._worker_id, self._number, age, rows)
                pause = await self._link.run(call) + self._spread
            except DatabaseUnavailable as error:
                logger.info("statistics wait for the database: %s", error)
                return pause
            except Exception as error:  # noqa: BLE001 (nothing depends on them; jobs go on)
                logger.warning("statistics of ten seconds are lost: %s", error)
            self._pending = None
            return pause

    def _gather(self) -> tuple[float, str] | None:
        """Return the middle of the time since the last tally, and the tally."""
        now = monotonic()
        began, self._began = self._began, now
        rows = self._tally.take()
        if not rows:
            return None
        self._number += 1
        return (began + now) / 2, json.dumps(rows)
