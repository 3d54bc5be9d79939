"""What becomes of a queue's backlog if things go on as they do: as data, and in words."""

from dataclasses import dataclass
from typing import Literal

Outlook = Literal["empty", "paused", "unserved", "blocked", "steady", "clearing", "growing", "waiting"]

_PATIENCE = 60.0
"""Seconds that the oldest job may wait, and seconds of output that may be ready, before a backlog counts as growing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOutlook:
    """What becomes of a backlog."""

    outlook: Outlook
    words: str
    clears_in: float | None = None
    """Seconds until it is gone, where it is going; with a capped count, at least so many."""
    grows_by: float | None = None
    """Jobs a second, where it is growing."""


def drain_outlook(  # noqa: PLR0911 (a table)
    *,
    ready: int,
    in_rate: float,
    out_rate: float,
    capped: bool = False,
    paused: bool = False,
    served: bool = True,
    max_running: int | None = None,
    oldest: float | None = None,
) -> DrainOutlook:
    """Judge a queue by what is ready in it and what comes and goes a second.

    `oldest`: the seconds that the oldest ready job has waited; None: not known, it may be long.
    """
    number = f"{ready:,}{'+' if capped else ''}"
    if paused:
        return DrainOutlook(outlook="paused", words=f"paused, {number} waiting" if ready else "paused")
    if not ready:
        return DrainOutlook(outlook="empty", words="empty")
    if not served:
        return DrainOutlook(outlook="unserved", words="no worker serves it")
    if max_running == 0:
        return DrainOutlook(outlook="blocked", words="limited to 0, nothing starts")
    net = out_rate - in_rate
    young = oldest is not None and oldest <= _PATIENCE
    # 20 jobs may be ready for that long, where little or nothing has finished yet.
    if net <= 0 and young and not capped and ready <= max(20, out_rate * _PATIENCE):
        return DrainOutlook(outlook="steady", words="steady")
    # A twentieth of the traffic is no difference, and ten seconds of work may wait in a queue that keeps up.
    if abs(net) <= 0.05 * max(in_rate, out_rate) or (ready <= out_rate * 10.0 and not capped):
        if not out_rate:
            return DrainOutlook(outlook="waiting", words=f"{number} waiting, none finished in the last minute")
        return DrainOutlook(outlook="steady", words="steady")
    if net > 0:
        seconds = ready / net
        more = "more than " if capped else "~"
        return DrainOutlook(outlook="clearing", words=f"clears in {more}{about(seconds)}", clears_in=seconds)
    rate = f"{-net:,.0f}" if -net >= 10 else f"{-net:.2g}"
    return DrainOutlook(outlook="growing", words=f"growing {rate}/s, will not drain", grows_by=-net)


def about(seconds: float) -> str:
    """Return a length of time as people say it: 20 s, 35 min, 3 h, 12 days."""
    if seconds < 1:
        return "1 s"
    for limit, size, unit in ((90, 1, "s"), (90 * 60, 60, "min"), (36 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"
