"""The attempts of a job as a strip: waiting, running, how each ended."""

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from leasehold.db.store import JobDetail
from leasehold.web.words import span

WIDTH: Final = 1000.0
_LEAST: Final = 10.0
_MOST: Final = 40
"""Attempts in the picture; the table has all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of time: `wait`, or how an attempt ended."""

    what: str
    label: str
    x: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """The whole strip."""

    pieces: list[Piece]
    left_out: int
    """Attempts before those that are shown."""
    words: str
    """The same for those who do not see it."""


def story(detail: JobDetail, now: datetime) -> Story:
    """The job's life so far. Widths grow with the logarithm: waits of days stand beside runs of a second."""
    stretches, left_out = _stretches(detail, now)
    weights = [_LEAST / 10 + math.log1p(max(0.0, seconds) * 10) for _, _, seconds in stretches]
    total = sum(weights) or 1.0
    pieces, x = [], 0.0
    for (what, label, seconds), weight in zip(stretches, weights, strict=True):
        width = WIDTH * weight / total
        pieces.append(Piece(what=what, label=f"{label} {span(seconds)}", x=round(x, 1), width=round(width, 1)))
        x += width
    words = ", ".join(piece.label for piece in pieces[-12:])
    return Story(pieces=pieces, left_out=left_out, words=words)


def _stretches(detail: JobDetail, now: datetime) -> tuple[list[tuple[str, str, float]], int]:
    job = detail.job
    attempts = detail.attempts[-_MOST:]
    left_out = len(detail.attempts) - len(attempts)
    at = attempts[0].claimed_at if left_out and attempts else job.created_at
    found: list[tuple[str, str, float]] = []
    for attempt in attempts:
        _wait(found, at, attempt.claimed_at)
        name = attempt.outcome.replace("_", " ")
        found.append(
            (attempt.outcome, f"attempt {attempt.attempt} {name} after", _seconds(attempt.claimed_at, attempt.ended_at))
        )
        at = attempt.ended_at
    if job.state == "running" and job.claimed_at is not None:
        _wait(found, at, job.claimed_at)
        found.append(("running", f"attempt {job.attempt} running for", _seconds(job.claimed_at, now)))
    elif job.state == "success" and job.claimed_at is not None and job.finished_at is not None:
        _wait(found, at, job.claimed_at)
        found.append(("success", f"attempt {job.attempt} succeeded after", _seconds(job.claimed_at, job.finished_at)))
    elif job.state in {"created", "queued", "retry"}:
        found.append(("wait", "waiting for", _seconds(at, now)))
    return found, left_out


def _wait(found: list[tuple[str, str, float]], begin: datetime, end: datetime) -> None:
    found.append(("wait", "waited", _seconds(begin, end)))


def _seconds(begin: datetime, end: datetime) -> float:
    return max(0.0, (end - begin).total_seconds())
