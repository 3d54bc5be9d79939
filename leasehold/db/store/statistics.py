"""The calls around statistics: what workers report, what charts show, how fast queues fill and empty."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

from leasehold._drain_outlook import DrainOutlook, drain_outlook
from leasehold._histogram import CLASSES
from leasehold.db.call import Call, Row
from leasehold.db.store.calls import Calls, filled

_STATISTICS = (
    "select n.at, s.at, success, failed, dead, snoozed, cancelled, released, waits, runs"
    " from (select clock_timestamp() as at) n"
    " left join lateral {}.statistics_v1(n.at - %s * interval '1 second', n.at, %s, %s::text[], %s::text[]) s on true"
)
_FLOW = (
    "select at, created, queued, running, retry, dead, arrived"
    " from {}.flow_v1(clock_timestamp() - %s * interval '1 second', null, %s)"
)

_ORIGIN: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Bucket:
    """What workers tallied in one step of time."""

    at: Annotated[datetime, "Its beginning."]
    success: int = 0
    failed: Annotated[int, "Attempts that failed, whatever became of the job."] = 0
    dead: Annotated[int, "Of these, the last ones of their jobs."] = 0
    snoozed: int = 0
    cancelled: int = 0
    released: int = 0
    waits: Annotated[
        Sequence[int], "How many had waited how long when they were claimed, by the classes of leasehold._histogram."
    ] = (0,) * CLASSES
    runs: Annotated[Sequence[int], "How many ran how long."] = (0,) * CLASSES


@dataclass(frozen=True, slots=True)
class FlowRow:
    """How many jobs were in which state at some moment, each counted up to 100,000."""

    at: datetime
    created: int
    queued: int
    running: int
    retry: int
    dead: int
    arrived: Annotated[int | None, "Jobs created in the step before; beyond 100,000 a minute an estimate."]


@dataclass(frozen=True, slots=True)
class Rate:
    """A queue, and what becomes of its backlog."""

    queue: str
    ready: int
    ready_capped: Annotated[bool, "So many, and more."]
    running: int
    oldest_seconds: Annotated[float | None, "How long the longest waiting of those that come next has waited."]
    in_rate: Annotated[float, "Jobs a second that arrive."]
    out_rate: Annotated[float, "Jobs a second that succeed, die or are cancelled."]
    paused: bool
    served: Annotated[bool, "Whether a live worker takes jobs from it."]
    max_running: int | None
    recent: Annotated[
        list[int] | None,
        "Jobs that finished in each of the last thirty whole minutes; None: not known for some kinds only.",
    ]

    @property
    def drain(self) -> DrainOutlook:
        """What becomes of its backlog."""
        return drain_outlook(
            ready=self.ready, capped=self.ready_capped, in_rate=self.in_rate, out_rate=self.out_rate,
            paused=self.paused, served=self.served, max_running=self.max_running,
            oldest=self.oldest_seconds,
        )  # fmt: skip


class StatisticsCalls(Calls):
    """Report and read statistics."""

    def statistics_add(self, worker: str, number: int, age: float, rows: str) -> Call[float]:
        """Report the worker's `number`th tally; returns the seconds until the database's next ten seconds begin."""
        return self._ask("statistics_add_v1", worker, number, age, rows)

    def statistics(
        self, seconds: float = 3600, step: int = 60, *, queues: list[str] | None = None,
        kinds: list[str] | None = None,
    ) -> Call[tuple[datetime, list[Bucket]]]:  # fmt: skip
        """What was tallied in the last `seconds`, in steps of a multiple of 10 seconds.

        Returns when it was queried, and the buckets without a gap, the oldest first; the last may not be over.
        """
        args = (seconds, step, queues, kinds)
        return Call(filled(_STATISTICS, self._prefix), args, lambda rows: _span(rows, seconds, step), repeatable=True)

    def flow(self, seconds: float = 3600, step: int = 60) -> Call[list[FlowRow]]:
        """How many jobs were in which state, over the last `seconds`, at most once a minute."""
        read = lambda rows: [FlowRow(*row) for row in rows]  # noqa: E731
        return Call(filled(_FLOW, self._prefix), (seconds, step), read, repeatable=True)

    def rates(self, *, queues: list[str] | None = None, kinds: list[str] | None = None) -> Call[list[Rate]]:
        """How fast each queue fills and empties, and what becomes of it."""
        return self._list(Rate, "rates_v1", queues, kinds)


def _span(rows: Sequence[Row], seconds: float, step: int) -> tuple[datetime, list[Bucket]]:
    now = rows[0][0].astimezone(UTC)
    found = {row[1].astimezone(UTC): Bucket(row[1].astimezone(UTC), *row[2:]) for row in rows if row[1] is not None}
    length = timedelta(seconds=step)
    at = _ORIGIN + (now - timedelta(seconds=seconds) - _ORIGIN) // length * length
    buckets = []
    while at < now:
        buckets.append(found.get(at) or Bucket(at))
        at += length
    return now, buckets
