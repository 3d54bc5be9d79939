"""One job: why it is not running, its attempts, its payload, result and logs."""

import json
import math
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from leasehold.db.store import JobDetail
from leasehold.operate import jobs
from leasehold.operate.refusals import id_of
from leasehold.web.redact import hide, pretty
from leasehold.web.visit import Visit
from leasehold.web.words import span

WIDTH: Final = 1000.0


async def show(visit: Visit) -> Response:
    """Return the page."""
    found = await visit.run(jobs.shown, id_of(visit.request.path_params["job_id"]))
    detail, hidden = found.detail, visit.parts.settings.hidden_fields
    payload = pretty(detail.payload, hidden)
    return visit.page(
        "job.html",
        job=detail.job,
        detail=detail,
        obstacles=found.obstacles,
        story=story(detail, visit.now),
        payload=payload,
        metadata=pretty(None if detail.job.metadata is None else json.dumps(detail.job.metadata), hidden),
        result=pretty(detail.result, hidden),
        attempts=list(reversed(detail.attempts)),
        logs=[(log.attempt, [_line(line) for line in log.lines]) for log in found.logs],
        commands=_commands(visit, detail, payload, hide(detail.job.metadata, hidden)),
    )


def _line(line: list[Any]) -> tuple[datetime | str, str, str]:
    at, level, text = (*line[:3], "", "", "")[:3]
    is_moment = isinstance(at, int | float) and 0 <= at < 1e11
    return datetime.fromtimestamp(at, UTC) if is_moment else str(at), str(level), str(text)


def _commands(
    visit: Visit, detail: JobDetail, payload: str | None, metadata: Mapping[str, Any] | None
) -> dict[str, str]:
    """Return what to paste into a terminal. `metadata`: as they are shown."""
    job, url = detail.job, visit.request.url
    api = f"{url.scheme}://{url.netloc}{visit.request.scope['root_path'].removesuffix('/dashboard')}/jobs"
    # The shell puts the token in: it is on no page.
    curl = "curl -s" if visit.caller.token is None else 'curl -s -H "Authorization: Bearer $LEASEHOLD_TOKEN"'
    found = {
        "Show with the CLI": f"leasehold jobs show {job.id}",
        "Show with curl": f"{curl} {shlex.quote(f'{api}/{job.id}')}",
    }
    if payload is not None:
        fields = {
            "jobType": job.kind, "queue": job.queue, "priority": job.priority, "maxAttempts": job.max_attempts,
            "exclusiveKey": job.exclusive_key, "tags": job.tags or None, "metadata": metadata or None,
            "idempotencyKey": "CHOOSE-A-NEW-KEY",
        }  # fmt: skip
        given = {name: value for name, value in fields.items() if value is not None}
        body = json.dumps(given, ensure_ascii=False)[:-1]
        compact = " ".join(part.strip() for part in payload.split("\n"))
        document = shlex.quote(f'{body}, "payload": {compact}}}')
        named = not job.kind.startswith("-")  # which would be taken for an option
        words = ["leasehold", "enqueue", *([job.kind] if named else [])]
        words += [f"--queue={job.queue}", f"--priority={job.priority}", f"--max-attempts={job.max_attempts}"]
        words += [f"--exclusive-key={job.exclusive_key}"] if job.exclusive_key else []
        words += [f"--tag={tag}" for tag in job.tags or ()]
        described = _pairs(metadata or {})
        words += [f"--metadata={pair}" for pair in described or ()]
        pairs = _pairs(json.loads(compact))
        words += [f"--payload={compact}"] if pairs is None else [f"--param={pair}" for pair in pairs]
        found["Submit again with curl"] = f"{curl} {shlex.quote(api)} -H 'content-type: application/json' -d {document}"
        if described is not None:
            found["Enqueue again with the CLI"] = shlex.join(words if named else [*words, "--", job.kind])
    return found


def _pairs(values: Mapping[str, Any]) -> list[str] | None:
    """Return the values as the command line takes them; None: it cannot, because of a name."""
    if any(not name or "=" in name or name.endswith(":") for name in values):
        return None
    return [
        f"{name}={value}" if isinstance(value, str) else f"{name}:={json.dumps(value, ensure_ascii=False)}"
        for name, value in values.items()
    ]


# -- its attempts as a strip: waiting, running, how each ended


class Piece(NamedTuple):
    """A stretch of time: `wait`, or how an attempt ended."""

    what: str
    label: str
    x: float
    width: float


class Story(NamedTuple):
    """The whole strip."""

    pieces: list[Piece]
    left_out: int  # attempts before those that are shown
    words: str  # the strip in words, for those who do not see it


def story(detail: JobDetail, now: datetime) -> Story:
    """Return the job's life so far. Widths grow with the logarithm: waits of days stand beside runs of a second."""
    job = detail.job
    attempts = detail.attempts[-40:]  # the table has all of them
    left_out = len(detail.attempts) - len(attempts)
    at = attempts[0].claimed_at if left_out else job.created_at
    found: list[tuple[str, str, float]] = []

    def add(what: str, words: str, begin: datetime, end: datetime) -> None:
        nonlocal at
        if what != "wait":
            add("wait", "waited", at, begin)
        found.append((what, words, max(0.0, (end - begin).total_seconds())))
        at = end

    for attempt in attempts:
        words = f"attempt {attempt.attempt} {attempt.outcome.replace('_', ' ')} after"
        add(attempt.outcome, words, attempt.claimed_at, attempt.ended_at)
    if job.state == "running" and job.claimed_at is not None:
        add("running", f"attempt {job.attempt} running for", job.claimed_at, now)
    elif job.state == "success" and job.claimed_at is not None and job.finished_at is not None:
        add("success", f"attempt {job.attempt} succeeded after", job.claimed_at, job.finished_at)
    elif job.state in {"created", "queued", "retry"}:
        add("wait", "waiting for", at, now)
    pieces = _pieces(found)
    return Story(pieces, left_out, ", ".join(piece.label for piece in pieces[-12:]))


def _pieces(stretches: list[tuple[str, str, float]]) -> list[Piece]:
    weights = [1 + math.log1p(seconds * 10) for _, _, seconds in stretches]
    pieces, x = [], 0.0
    for (what, words, seconds), weight in zip(stretches, weights, strict=True):
        width = WIDTH * weight / sum(weights)
        pieces.append(Piece(what, f"{words} {span(seconds)}", round(x, 1), round(width, 1)))
        x += width
    return pieces
