"""The same job again, with what it carries edited."""

import json
from typing import Any

from pydantic import Field
from starlette.responses import Response

from leasehold.http.body import validated
from leasehold.http.ops.callers import visible
from leasehold.http.parsing import checked_text, parse
from leasehold.http.problems import Problem, invalid
from leasehold.http.schemas import Asked, JobRequest, Key
from leasehold.http.submissions import submission_of
from leasehold.intent import MAX_KEY_BYTES
from leasehold.web.redact import HIDDEN, restore
from leasehold.web.visit import Visit


class Clone(Asked):
    """A job, and what the new one carries."""

    id: str
    payload: str = Field(description="JSON text.")
    queue: str
    key: Key = Field(description="Made with the dialog: sent twice, there is one job.")


async def clone(visit: Visit, wanted: Clone) -> Response:
    """Submit a new job like the old one."""
    caller = visit.visitor.caller
    seen = await visible(visit.parts, caller, wanted.id)
    detail = await visit.ask(visit.store.job_detail(seen.id))
    if detail is None:
        raise Problem("not-found", "no such job")
    text = checked_text(wanted.payload.encode("utf-8", "surrogatepass"), most=visit.parts.settings.body_bytes)
    payload: Any = parse(text)
    if not isinstance(payload, dict):
        raise invalid(("payload", "not a JSON object"))
    # As it was written, unless something hidden has to be put back: Python's numbers are not JSON's.
    exact = json.dumps(restore(payload, json.loads(detail.payload))) if HIDDEN in text else text
    job = detail.job
    fields = {
        "jobType": job.kind, "queue": wanted.queue, "priority": job.priority, "maxAttempts": job.max_attempts,
        "exclusiveKey": job.exclusive_key, "tags": job.tags,
    }  # fmt: skip
    request = validated(JobRequest, fields)
    if not caller.may(queue=wanted.queue, kind=request.job_type):
        raise Problem("forbidden", "this token is not good for that queue or kind")
    key = f"dashboard:{wanted.key}"[:MAX_KEY_BYTES]
    made = await visit.parts.submitter.submit(submission_of(request, key, exact, caller))
    return visit.done("a new job was submitted", go=f"/jobs/{made.id}")
