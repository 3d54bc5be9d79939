"""The calls around statistics: what workers tally, what pictures are made of, how fast queues fill and empty."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from leasehold.db.call import Call, Row
from leasehold.db.store.calls import Calls, scalar
from leasehold.histogram import CLASSES
from leasehold.verdict import Verdict, verdict

_COUNTS = "success, failed, dead, snoozed, cancelled, released"

_TEXTS = {
    "statistics_add": "select {}.statistics_add_v1(%s, %s, %s, %s::jsonb)",
    "statistics": f"select n.at, s.at, {_COUNTS}, waits, runs from (select clock_timestamp() as at) n"  # noqa: S608
    " left join lateral {}.statistics_v1(n.at - %s * interval '1 second', n.at, %s, %s::text[], %s::text[]) s on true",
    "flow": "select at, created, queued, running, retry, dead, arrived"
    " from {}.flow_v1(clock_timestamp() - %s * interval '1 second', null, %s)",
    "rates": "select queue, ready, ready_capped, running, oldest_seconds, in_rate, out_rate, paused, served,"
    " max_running, recent from {}.rates_v1(%s::text[], %s::text[])",
}

_ORIGIN: Final = datetime(2000, 1, 1, tzinfo=UTC)
FLOW_CAP: Final = 100_000
"""States are counted up to here in the samples of the flow."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """What workers tallied in one step of time."""

    at: datetime
    """Its beginning."""
    success: int = 0
    failed: int = 0
    """Attempts that failed, whatever became of the job."""
    dead: int = 0
    """Of these, the last ones of their jobs."""
    snoozed: int = 0
    cancelled: int = 0
    released: int = 0
    waits: Sequence[int] = (0,) * CLASSES
    """How many had waited how long when they were claimed, by the classes of leasehold.histogram."""
    runs: Sequence[int] = (0,) * CLASSES
    """How many ran how long."""


@dataclass(frozen=True, slots=True)
class Span:
    """Buckets without a gap, the oldest first."""

    step: int
    """Seconds from one to the next."""
    now: datetime
    """When it was looked at; the last bucket may not be over."""
    buckets: list[Bucket]


@dataclass(frozen=True, slots=True)
class FlowRow:
    """How many jobs were in which state at some moment, each counted up to FLOW_CAP."""

    at: datetime
    created: int
    queued: int
    running: int
    retry: int
    dead: int
    arrived: int | None
    """Jobs created in the step before."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A queue, and what becomes of it."""

    queue: str
    ready: int
    ready_capped: bool
    running: int
    oldest_seconds: float | None
    """How long the longest waiting of the jobs that come next has been ready."""
    in_rate: float
    """Jobs a second that arrive."""
    out_rate: float
    """Jobs a second that depart: that succeed, die or are cancelled."""
    paused: bool
    served: bool
    """Whether a live worker takes jobs from it."""
    max_running: int | None
    recent: list[int] | None
    """Jobs that finished in each of the last thirty whole minutes; None: not known for some kinds only."""

    @property
    def verdict(self) -> Verdict:
        """What becomes of its backlog."""
        return verdict(
            ready=self.ready,
            capped=self.ready_capped,
            in_rate=self.in_rate,
            out_rate=self.out_rate,
            paused=self.paused,
            served=self.served,
            max_running=self.max_running,
        )


class StatisticsCalls(Calls):
    """Tally, and look at what was tallied."""

    texts = _TEXTS

    def statistics_add(self, worker: str, number: int, age: float, rows: str) -> Call[float]:
        """Hand in the worker's `number`th tally; gives the seconds until the database's next ten seconds begin."""
        return Call(self._sql["statistics_add"], (worker, number, age, rows), scalar, repeatable=True)

    def statistics(
        self,
        seconds: float = 3600,
        step: int = 60,
        *,
        queues: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
    ) -> Call[Span]:
        """What was tallied in the last `seconds`, in steps of a multiple of 10 seconds."""
        args = (seconds, step, _listed(queues), _listed(kinds))
        return Call(self._sql["statistics"], args, lambda rows: _span(rows, seconds, step), repeatable=True)

    def flow(self, seconds: float = 3600, step: int = 60) -> Call[list[FlowRow]]:
        """How many jobs were in which state, over the last `seconds`, at most once a minute."""
        read = lambda rows: [FlowRow(*row) for row in rows]  # noqa: E731
        return Call(self._sql["flow"], (seconds, step), read, repeatable=True)

    def rates(self, *, queues: Sequence[str] | None = None, kinds: Sequence[str] | None = None) -> Call[list[Rate]]:
        """How fast each queue fills and empties, and what becomes of it."""
        args = (_listed(queues), _listed(kinds))
        return Call(self._sql["rates"], args, lambda rows: [Rate(*row) for row in rows], repeatable=True)


def _span(rows: Sequence[Row], seconds: float, step: int) -> Span:
    now = rows[0][0].astimezone(UTC)
    found = {row[1].astimezone(UTC): Bucket(row[1].astimezone(UTC), *row[2:]) for row in rows if row[1] is not None}
    length = timedelta(seconds=step)
    at = _ORIGIN + (now - timedelta(seconds=seconds) - _ORIGIN) // length * length
    buckets = []
    while at < now:
        buckets.append(found.get(at) or Bucket(at))
        at += length
    return Span(step, now, buckets)


def _listed(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)
