"""Where the next claim goes on, so that it need not walk over what was claimed before."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from leasehold.db.store import ClaimedJob

_SHARE = 9.0
"""A look from the start that took so long is followed by this many times as long without one: a tenth of the time."""

_LONGEST = 1.0
"""Seconds without a look from the start, at most."""


@dataclass(slots=True)
class _Place:
    """How far the claims from some queues have come."""

    lanes: dict[tuple[str, str], ClaimedJob] = field(default_factory=dict)
    """The last job that was given, by queue and kind."""

    until: float = 0.0
    """When to look from the start again."""


class Cursor:
    """Remembers the last job of each queue and kind that a claim gave.

    Claimed jobs leave dead entries in the index of runnable jobs, and while anybody holds an old snapshot vacuum cannot
    remove them: every claim from the start walks over all of them again. One that goes on behind the last job does not.
    What it cannot see (jobs put in front of that place: more urgent ones, retried ones; and queues that gave nothing so
    far) is found by the next look from the start. How soon that comes depends on how long such a look takes: while it
    is cheap, within milliseconds.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[str, ...] | None, _Place] = {}

    def lanes(self, queues: Sequence[str] | None, now: float) -> str | None:
        """The argument `lanes` for a claim from these queues; None: look from the start."""
        place = self._places.get(_key(queues))
        if place is None or now >= place.until:
            return None
        return json.dumps(
            [
                {"queue": queue, "kind": kind, "priority": job.priority, "id": job.id}
                for (queue, kind), job in place.lanes.items()
            ]
        )

    def note(self, queues: Sequence[str] | None, jobs: Sequence[ClaimedJob], *, wanted: int, began: float, ended: float,
             from_start: bool) -> None:  # fmt: skip
        """Remember what a claim gave. One that gave less than was wanted has come to the end: start again."""
        key = _key(queues)
        if len(jobs) < wanted:
            self._places.pop(key, None)
            return
        if from_start:
            self._places[key] = _Place(until=ended + min(_LONGEST, _SHARE * (ended - began)))
        place = self._places.get(key)
        if place is not None:
            place.lanes.update({(job.queue, job.kind): job for job in jobs})  # the last of each stays


def _key(queues: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if queues is None else tuple(queues)
