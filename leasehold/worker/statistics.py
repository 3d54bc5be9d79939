"""Tallies what becomes of jobs, and hands it in every ten seconds when there is something. Never the truth about jobs:
a worker that is killed takes what it has not handed in along."""

import asyncio
import json
import logging
import random
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import add
from typing import Any

from leasehold.db.link import Link
from leasehold.db.store import ClaimedJob, Store
from leasehold.errors import DatabaseUnavailable
from leasehold.histogram import CLASSES, count

logger = logging.getLogger(__name__)

_PERIOD = 10.0
"""Seconds from one tally to the next, as in the database."""
_FOLD_AT = 2000
"""Durations that are kept before they are counted: few enough to be no burden, enough to make counting cheap."""
_SPREAD = (0.2, 2.0)
"""Seconds after the end of the database's ten seconds at which a worker hands in: all at once would be a crowd."""


class _Lane:
    """One queue and kind."""

    __slots__ = ("counts", "run_classes", "runs", "wait_classes", "waits")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.waits: list[float] = []
        self.runs: list[float] = []
        self.wait_classes = [0] * CLASSES
        self.run_classes = [0] * CLASSES

    def fold(self) -> None:
        """Count the durations."""
        self.wait_classes = list(map(add, self.wait_classes, count(self.waits)))
        self.run_classes = list(map(add, self.run_classes, count(self.runs)))
        self.waits.clear()
        self.runs.clear()


class Tally:
    """What has become of jobs since it was last taken."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[str, str], _Lane] = {}

    def finished(self, outcome: str, jobs: Iterable[ClaimedJob]) -> None:
        """These ended alike: `success`, `failed`, `dead`, `snoozed`, `cancelled` or `released`."""
        lanes = self._lanes
        groups: dict[tuple[str, str], list[ClaimedJob]] = {}
        queue = kind = None
        group: list[ClaimedJob] = []
        for job in jobs:  # neighbours are mostly alike, and to compare is a fifth of the cost of looking up
            if job.kind != kind or job.queue != queue:
                queue, kind = job.queue, job.kind
                group = groups.setdefault((queue, kind), [])
            group.append(job)
        for key, group in groups.items():
            lane = lanes.get(key)
            if lane is None:
                lane = lanes[key] = _Lane()
            counts = lane.counts
            counts[outcome] = counts.get(outcome, 0) + len(group)
            if outcome == "dead":  # a job's last failure is a failure too
                counts["failed"] = counts.get("failed", 0) + len(group)
            if outcome != "released":  # one that was given back has not run, or not to an end
                lane.waits += [job.waited for job in group]
                lane.runs += [job.ran for job in group]
                if len(lane.runs) >= _FOLD_AT:
                    lane.fold()

    def reported(
        self, jobs: Sequence[ClaimedJob], reports: Sequence[Mapping[str, Any]], states: Mapping[str, str]
    ) -> None:
        """These did not succeed; `states` are those of the jobs whose report counts."""
        ends: dict[str, list[ClaimedJob]] = {}
        for job, report in zip(jobs, reports, strict=True):
            if job.id in states:
                outcome = report["outcome"]
                if outcome == "failed" and states[job.id] == "dead":
                    outcome = "dead"
                ends.setdefault(outcome, []).append(job)
        for outcome, group in ends.items():
            self.finished(outcome, group)

    def take(self) -> list[dict[str, Any]]:
        """The rows for the database; begin anew."""
        lanes, self._lanes = self._lanes, {}
        rows = []
        for (queue, kind), lane in lanes.items():
            lane.fold()
            rows.append(
                {"queue": queue, "kind": kind, **lane.counts, "waits": lane.wait_classes, "runs": lane.run_classes}
            )
        return rows


def counting(jobs: Sequence[ClaimedJob], missing: Collection[ClaimedJob]) -> Sequence[ClaimedJob]:
    """Those whose report counts."""
    return [job for job in jobs if job not in missing] if missing else jobs


class Statistician:
    """The loop that hands tallies in. One that was not answered is handed in again, under its number."""

    def __init__(self, worker: str, link: Link, store: Store, tally: Tally) -> None:
        self._worker = worker
        self._link = link
        self._store = store
        self._tally = tally
        self._number = 0
        self._pending: tuple[float, str] | None = None
        self._began = time.monotonic()
        self._pause = _PERIOD
        self._spread = random.uniform(*_SPREAD)  # noqa: S311 (spread, not secrecy)
        self._turn = asyncio.Lock()

    async def run(self) -> None:
        """Hand in until cancelled."""
        while True:
            await asyncio.sleep(self._pause)
            await self.flush()

    async def flush(self) -> None:
        """Hand in what there is now. Nothing to say: nothing is sent."""
        async with self._turn:
            if self._pending is None:
                self._pending = self._gather()
            self._pause = _PERIOD
            if self._pending is None:
                return
            middle, rows = self._pending
            age = min(time.monotonic() - middle, 86400.0)
            try:
                left = await self._link.run(self._store.statistics_add(self._worker, self._number, age, rows))
            except DatabaseUnavailable as error:
                logger.info("statistics wait for the database: %s", error)
                return
            except Exception as error:  # noqa: BLE001 (nothing depends on them; jobs go on)
                logger.warning("statistics of ten seconds are lost: %s", error)
            else:
                self._pause = left + self._spread
            self._pending = None

    def _gather(self) -> tuple[float, str] | None:
        """The middle of the time since the last tally, and the tally."""
        now = time.monotonic()
        began, self._began = self._began, now
        rows = self._tally.take()
        if not rows:
            return None
        self._number += 1
        return (began + now) / 2, json.dumps(rows)
