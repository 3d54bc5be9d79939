"""What people do on the dashboard: each action reads a small body, carries out an operation, and says what it did."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from pydantic import AfterValidator, BaseModel, Field, ValidationInfo, create_model, field_validator
from starlette.responses import Response

from leasehold._facts import MAX_KEY_BYTES
from leasehold.http.body import checked_text, parse, validated
from leasehold.http.ops.schemas import CancelFilter, RetryFilter
from leasehold.http.problems import Problem, invalid
from leasehold.http.schemas import Asked, ErrorClass, JobFilter, JobRequest, Key, Name, RequestedFields, Words
from leasehold.http.submissions import submission_of
from leasehold.operate import canary, jobs, limits, queues, schedules
from leasehold.operate.operator import Operation
from leasehold.operate.refusals import Refusal, id_of, is_uuid
from leasehold.web.pages.jobs import chosen
from leasehold.web.redact import HIDDEN, restore
from leasehold.web.visit import Visit

Action = Callable[[Visit, Any], Awaitable[Response]]

_AT_ONCE: Final = 200
"""So many that one statement ends well within the time that a request has."""


def _body(**fields: Any) -> type[BaseModel]:
    """Return a model of these fields: each a type, or a type and its default."""
    parts: dict[str, Any] = {name: kind if isinstance(kind, tuple) else (kind, ...) for name, kind in fields.items()}
    return create_model("Body", __base__=Asked, **parts)


def _doing(operation: Operation[..., Any], done: str, idle: str | None = None) -> Action:
    """Return an action that runs an operation with the fields of its body in order; `idle`: if nothing was to do."""

    async def act(visit: Visit, body: BaseModel) -> Response:
        values = dict(body)
        changed = await visit.run(operation, *values.values())
        return visit.done((idle if idle and not changed else done).format(**values))

    return act


# -- jobs


class Chosen(Asked):
    """Jobs, chosen one by one."""

    ids: Annotated[list[str], Field(min_length=1, max_length=_AT_ONCE)]


async def change_chosen(how: jobs.Change, visit: Visit, wanted: Chosen) -> Response:
    """Change these jobs."""
    ids = wanted.ids
    if len(ids) == 1:
        changed = int(await visit.run(jobs.change, how, id_of(ids[0])))
    else:
        changed = await visit.run(jobs.change_each, how, [UUID(text) for text in ids if is_uuid(text)])
    if not changed:
        raise Refusal("wrong state", "nothing was changed: no job is in a state that allows it")
    left = len(ids) - changed
    message = f"{changed} job{'s' if changed > 1 else ''} {how.done}"
    return visit.done(message + (f"; {left} left as they are: their state does not allow it" if left else ""))


class Matching(Asked):
    """All jobs that match, by the names of the URL; and whether they are only counted."""

    filter: dict[str, str | list[str]]
    dry_run: bool
    most: Annotated[int, Field(ge=1, le=_AT_ONCE)] = _AT_ONCE
    cursor: Annotated[str, Field(max_length=10_000)] | None = None


async def change_matching(how: jobs.Change, model: type[JobFilter], visit: Visit, wanted: Matching) -> Response:
    """Change the jobs that match, or count them."""
    limit = 10_000 if wanted.dry_run else wanted.most
    fields = chosen(model, wanted.filter)
    found = await visit.run(jobs.change_matching, how, fields, limit, dry_run=wanted.dry_run, cursor=wanted.cursor)
    message = f"{found.matched:,} match" if wanted.dry_run else f"{found.changed:,} jobs changed"
    return visit.done(message, **asdict(found))


class Clone(Asked):
    """A job, and what the new one carries."""

    id: str
    payload: str = Field(description="JSON text.")
    queue: str
    key: Key = Field(description="Made with the dialog: sent twice, there is one job.")


async def clone(visit: Visit, wanted: Clone) -> Response:
    """Submit a new job like the old one."""
    detail = await visit.run(jobs.detail, id_of(wanted.id))
    text = checked_text(wanted.payload.encode("utf-8", "surrogatepass"), most=visit.parts.settings.body_bytes)
    payload: Any = parse(text)
    if not isinstance(payload, dict):
        raise invalid(("payload", "not a JSON object"))
    # As it was written, unless something hidden has to be put back: Python would change the digits of numbers.
    exact = json.dumps(restore(payload, json.loads(detail.payload or "null"))) if HIDDEN in text else text
    changed = {"job_type": detail.job.kind, "queue": wanted.queue, "payload": payload}
    names = RequestedFields.model_fields
    values = {names[one].alias: changed[one] if one in changed else getattr(detail.job, one) for one in names}
    request = validated(JobRequest, values)
    if not visit.caller.may(queue=wanted.queue, kind=request.job_type):
        raise Problem("forbidden", "this token is not good for that queue or kind")
    key = f"dashboard:{wanted.key}"[:MAX_KEY_BYTES]
    made = await visit.parts.submitter.submit(submission_of(request, key, {"payload": exact}, visit.caller))
    return visit.done("a new job was submitted", go=f"/jobs/{made.id}")


# -- queues, limits, schedules

Reason = Annotated[Words, AfterValidator(lambda text: text.strip() or None)]


class ClearLimit(Asked):
    """Which limit."""

    scope: Literal["global", "queue", "kind", "key"]
    name: str = Field("", max_length=MAX_KEY_BYTES, validate_default=True)

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str, info: ValidationInfo) -> str:
        scope = info.data.get("scope", "global")
        if scope != "global" and not name:
            raise ValueError(f"which {scope}?")
        return "" if scope == "global" else name


class SetLimit(ClearLimit):
    """Which limit, and how many."""

    max_running: Annotated[int, Field(ge=0, le=2_147_483_647)]


async def run_schedule(visit: Visit, wanted: Any) -> Response:
    """Enqueue one job now; the next run stays where it is."""
    [job_id] = await visit.parts.database.anew_ids(1)
    await visit.run(schedules.run_now, wanted.key, job_id)
    return visit.done("a job was enqueued", job=f"/jobs/{job_id}")


# -- the demo


async def kill_worker(visit: Visit, _: BaseModel) -> Response:
    """Kill a worker of the demo, to see that no job is lost."""
    if visit.demo is None:
        raise Problem("not-found", "this is no demo")
    killed = await asyncio.to_thread(visit.demo.kill)
    words = ", ".join(f"{name} {value}" for name, value in killed.items())
    return visit.done(f"killed {words}: watch its jobs move over", killed=killed)


_TRYING: Final = "ten jobs are tried first; the rest follows if they succeed"

ACTIONS: Final[dict[str, tuple[type[BaseModel], Action]]] = {
    "/jobs/retry": (Chosen, partial(change_chosen, jobs.RETRY)),
    "/jobs/cancel": (Chosen, partial(change_chosen, jobs.CANCEL)),
    "/jobs/run": (Chosen, partial(change_chosen, jobs.RUN_NOW)),
    "/jobs/clone": (Clone, clone),
    "/jobs/matching/retry": (Matching, partial(change_matching, jobs.RETRY, RetryFilter)),
    "/jobs/matching/cancel": (Matching, partial(change_matching, jobs.CANCEL, CancelFilter)),
    "/queues/pause": (
        _body(queue=Name, reason=(Reason, None)),
        _doing(queues.pause, "{queue} is paused; what runs goes on"),
    ),
    "/queues/resume": (_body(queue=Name), _doing(queues.resume, "{queue} goes on", "{queue} was not paused")),
    "/limits/set": (SetLimit, _doing(limits.set_limit, "at most {max_running:,} may run at the same time")),
    "/limits/clear": (ClearLimit, _doing(limits.drop, "the limit is gone")),
    "/schedules/run": (_body(key=Name), run_schedule),
    "/schedules/enable": (_body(key=Name), _doing(schedules.enable, "{key} is on")),
    "/schedules/disable": (_body(key=Name), _doing(schedules.disable, "{key} is off")),
    "/canaries/start": (_body(kind=Name, error_class=ErrorClass), _doing(canary.start, _TRYING)),
    "/canaries/stop": (_body(id=UUID), _doing(canary.stop, "the canary retry is stopped")),
    "/demo/kill": (_body(), kill_worker),
}
"""By path below the dashboard's own: what is sent, and what is done."""
