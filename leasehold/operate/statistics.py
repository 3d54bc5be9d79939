"""What happened over time: throughput, failures, waiting and running times, and samples of how many jobs there were."""

from bisect import bisect_left
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Final

from leasehold.db.store import Bucket, FlowRow
from leasehold.operate.operator import Operator

LONGEST: Final = 14 * 24 * 3600
_STEPS: Final = (10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """A span of time in equal steps, without gaps."""

    step: int
    """Seconds from one bucket to the next."""
    since: datetime
    until: datetime
    """The end of the last bucket that is complete."""
    buckets: list[Bucket]
    flow: list[tuple[FlowRow, int]] | None
    """Samples, each with what had finished by then; None for some queues or kinds only."""


async def read(
    op: Operator, seconds: int = 3600, step: int | None = None, queue: str | None = None, kind: str | None = None
) -> Statistics:
    """Return the statistics of the last seconds, as far as the caller may see them."""
    size = fitting_step(seconds, step)
    narrow = op.caller.narrow(queue=queue, kind=kind)
    now, buckets = await op.ask(op.store.statistics(seconds, size, **narrow))
    flow: list[FlowRow] | None = None
    if narrow["queues"] is None and narrow["kinds"] is None:
        flow = await op.ask(op.store.flow(seconds, size))
    length = timedelta(seconds=size)
    # A bucket that is not complete would appear as a fall: workers send their tallies up to fifteen seconds late. Long
    # steps are shown all the same: they fill for minutes.
    over = now - length - timedelta(seconds=15)
    complete = [bucket for bucket in buckets if size >= 600 or bucket.at <= over]
    since = buckets[0].at
    return Statistics(
        step=size,
        since=since,
        until=complete[-1].at + length if complete else since,
        buckets=complete,
        flow=None if flow is None else _with_finished(buckets, flow),
    )


def fitting_step(seconds: int, step: int | None) -> int:
    """Return the step that was asked for, or one that makes about a hundred; never more than a thousand."""
    if step is None:
        step = next((size for size in _STEPS if seconds <= size * 120), _STEPS[-1])
    least = -(-seconds // 1000)
    return max(step, -(-least // 10) * 10)


def _with_finished(buckets: list[Bucket], rows: list[FlowRow]) -> list[tuple[FlowRow, int]]:
    begins = [bucket.at for bucket in buckets]
    finished = list(accumulate((bucket.success for bucket in buckets), initial=0))
    return [(row, finished[bisect_left(begins, row.at)]) for row in rows]
