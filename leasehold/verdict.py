"""What becomes of a queue's backlog if things go on as they do: as data, and in words."""

from dataclasses import dataclass
from typing import Literal

Outlook = Literal["empty", "paused", "unserved", "blocked", "steady", "clearing", "growing", "waiting"]

_YOUNG = 10.0
"""Seconds of work that may wait in a queue that keeps up."""

_NOTICEABLE = 0.05
"""Of the traffic: a difference between in and out below this is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of a backlog."""

    outlook: Outlook
    words: str
    clears_in: float | None = None
    """Seconds until it is gone, where it is going; with a capped count, at least so many."""
    grows_by: float | None = None
    """Jobs a second, where it is growing."""


def verdict(  # noqa: PLR0911 (a table)
    *,
    ready: int,
    in_rate: float,
    out_rate: float,
    capped: bool = False,
    paused: bool = False,
    served: bool = True,
    max_running: int | None = None,
) -> Verdict:
    """Judge a queue by what is ready in it and what comes and goes a second."""
    number = f"{ready:,}{'+' if capped else ''}"
    if paused:
        return Verdict(outlook="paused", words=f"paused, {number} waiting" if ready else "paused")
    if not ready:
        return Verdict(outlook="empty", words="empty")
    if not served:
        return Verdict(outlook="unserved", words="nobody serves it")
    if max_running == 0:
        return Verdict(outlook="blocked", words="limited to 0, nothing starts")
    net = out_rate - in_rate
    if abs(net) <= _NOTICEABLE * max(in_rate, out_rate) or (ready <= out_rate * _YOUNG and not capped):
        if not out_rate:
            return Verdict(outlook="waiting", words=f"{number} waiting, none finished in the last minute")
        return Verdict(outlook="steady", words="steady")
    if net > 0:
        seconds = ready / net
        more = "more than " if capped else "~"
        return Verdict(outlook="clearing", words=f"clears in {more}{about(seconds)}", clears_in=seconds)
    return Verdict(outlook="growing", words=f"growing {_rate(-net)}/s, will not drain", grows_by=-net)


def about(seconds: float) -> str:
    """A length of time as people say it: 20 s, 35 min, 3 h, 12 days."""
    if seconds < 1:
        return "1 s"
    for limit, size, unit in ((90, 1, "s"), (90 * 60, 60, "min"), (36 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.2g}"
