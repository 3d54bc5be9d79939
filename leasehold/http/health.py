"""Whether this process lives, whether it can work, and what its problems mean."""

from typing import Annotated, Final

from fastapi import APIRouter, Path, Request
from fastapi.responses import PlainTextResponse

from leasehold.db.compat import presence, presence_problem, version_problem, versions
from leasehold.db.schema_files import packaged
from leasehold.errors import LeaseholdError
from leasehold.http.problems import KNOWN, Problem, problem_of, responses
from leasehold.http.runtime import Runtime, runtime
from leasehold.http.schemas import View

router = APIRouter(tags=["process"])

_GOOD_FOR: Final = 0.5
"""Seconds for which it is known whether the database answers."""


class Health(View):
    """All is well."""

    status: str = "ok"


@router.get("/healthz", operation_id="isAlive", summary="Does this process live?")
async def healthz() -> Health:
    """Always 200 while it does, whatever the database does."""
    return Health()


@router.get(
    "/readyz",
    operation_id="isReady",
    summary="Can this process work?",
    responses=responses("database-unavailable", "schema-mismatch"),
)
async def readyz(request: Request) -> Health:
    """200 when the database answers and has a schema that this release knows, else 503."""
    parts = await runtime(request)
    # Open to all, so it must not be a way to keep the database busy.
    problem = await parts.readiness.get("ready", _GOOD_FOR, lambda: _problem(parts))
    if problem is not None:
        raise problem_of(problem)
    return Health()


async def _problem(parts: Runtime) -> LeaseholdError | None:
    schema = parts.app.settings.schema
    problem = presence_problem(await parts.database.arun(presence(schema)), schema=schema)
    if problem is None:
        found = await parts.database.arun(versions(schema))
        problem = version_problem(found, latest=packaged().latest, schema=schema)
    return problem


@router.get(
    "/problems/{name}",
    operation_id="explainProblem",
    summary="What a type of problem means",
    response_class=PlainTextResponse,
    responses=responses("not-found"),
)
async def problem(
    name: Annotated[str, Path(openapi_examples={"one": {"value": "idempotency-conflict"}})],
) -> PlainTextResponse:
    """The types of problem details are relative references to here."""
    known = KNOWN.get(name)
    if known is None:
        raise Problem("not-found", "no such problem")
    return PlainTextResponse(f"{known.title} ({known.status})\n\n{known.meaning}\n")
