"""One job: why it does not run, what was tried, what it carries and said."""

import json
import shlex
from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response

from leasehold.db.store import JobDetail, LogRow, Obstacle
from leasehold.http.ops.callers import visible
from leasehold.http.problems import Problem
from leasehold.web.redact import pretty
from leasehold.web.story import story
from leasehold.web.visit import Visit


async def show(visit: Visit) -> Response:
    """The page."""
    seen = await visible(visit.parts, visit.visitor.caller, visit.request.path_params["job_id"])
    detail: JobDetail | None = await visit.ask(visit.store.job_detail(seen.id))
    if detail is None:
        raise Problem("not-found", "no such job")
    obstacles = [await _shown(visit, found) for found in await visit.ask(visit.store.explain(seen.id))]
    whole = visit.visitor.sees_content
    hidden = visit.parts.settings.hidden_fields
    logs: list[LogRow] = await visit.ask(visit.store.logs(seen.id)) if whole else []
    payload = pretty(detail.payload, hidden) if whole else None
    return visit.page(
        "job.html",
        job=detail.job,
        detail=detail,
        obstacles=obstacles,
        story=story(detail, visit.now),
        payload=payload,
        result=pretty(detail.result, hidden) if whole else None,
        attempts=list(reversed(detail.attempts)),
        logs=[(log.attempt, [_line(line) for line in log.lines]) for log in logs],
        commands=_commands(visit, detail, payload),
    )


async def _shown(visit: Visit, found: Obstacle) -> Obstacle:
    """What stands in the way, without a job that is not the visitor's business."""
    if found.blocker is None or not visit.visitor.restricted:
        return found
    try:
        await visible(visit.parts, visit.visitor.caller, str(found.blocker))
    except Problem:
        return Obstacle(found.reason, "another job of the same exclusive key is running", None, found.until)
    return found


def _line(line: list[Any]) -> tuple[datetime | str, str, str]:
    at, level, text = (*line[:3], "", "", "")[:3]
    if isinstance(at, int | float) and 0 <= at < 1e11:
        return datetime.fromtimestamp(at, UTC), str(level), str(text)
    return str(at), str(level), str(text)


def _commands(visit: Visit, detail: JobDetail, payload: str | None) -> dict[str, str]:
    """What to paste into a terminal."""
    job = detail.job
    api = str(visit.request.base_url).rstrip("/").removesuffix(visit.base).rstrip("/")
    root = visit.base.removesuffix("/dashboard")
    found = {
        "Show with the CLI": f"leasehold jobs show {job.id}",
        "Show with curl": f"curl -s {api}{root}/jobs/{job.id}",
    }
    if payload is not None:
        body = json.dumps({"jobType": job.kind, "queue": job.queue, "idempotencyKey": "CHOOSE-A-NEW-KEY"})[:-1]
        compact = " ".join(part.strip() for part in payload.splitlines())
        document = f'{body}, "payload": {compact}}}'
        found["Submit again with curl"] = (
            f"curl -s {api}{root}/jobs -H 'content-type: application/json' -d {shlex.quote(document)}"
        )
        found["Enqueue again with the CLI"] = _enqueue(job.kind, job.queue, compact)
    return found


def _enqueue(kind: str, queue: str, payload: str) -> str:
    words = ["leasehold", "enqueue", kind, "--queue", queue]
    for name, value in json.loads(payload).items():
        plain = isinstance(value, str)
        words += ["-p", f"{name}={value}" if plain else f"{name}:={json.dumps(value, ensure_ascii=False)}"]
    return shlex.join(words)
