"""/ops/limits: how many jobs may run at the same time."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from leasehold.http.auth import Caller
from leasehold.http.body import body_of, read_model
from leasehold.http.ops.bulk import BODY_PROBLEMS
from leasehold.http.ops.callers import Looker, Operator
from leasehold.http.ops.pages import Page, page_of
from leasehold.http.ops.schemas import LimitList, LimitRequest, LimitUse, LimitView
from leasehold.http.problems import Problem, responses
from leasehold.http.runtime import runtime
from leasehold.http.schemas import Name

router = APIRouter(tags=["ops"])

LimitScope = Annotated[Literal["queue", "kind", "key"], Path(description="Of a queue, a kind, or exclusive keys.")]
LimitName = Annotated[
    Name,
    Path(
        description="The queue, the kind, or what the exclusive keys begin with.",
        openapi_examples={"a queue": {"value": "mail"}},
    ),
]


@router.get(
    "/limits",
    operation_id="listLimits",
    summary="The limits",
    response_model=LimitList,
    responses=responses("not-found", "invalid-request"),
)
async def list_limits(request: Request, caller: Looker, page: Page) -> LimitList:
    """Each with what runs under it now."""
    parts = await runtime(request)
    found = await parts.database.arun(parts.database.store.limits())
    mine = [row for row in found if _knows(caller, row.scope, row.name)]
    shown, cursor = page_of(mine, page, lambda row: f"{row.scope} {row.name}")
    uses = [LimitUse(**{name: getattr(row, name) for name in LimitUse.model_fields}) for row in shown]
    return LimitList(limits=uses, cursor=cursor)


@router.put(
    "/limits/global",
    operation_id="setGlobalLimit",
    summary="Limit how many jobs run at all",
    response_model=LimitView,
    responses=responses("not-found", *BODY_PROBLEMS),
    openapi_extra=body_of(LimitRequest, {"maxRunning": 200}),
)
async def set_global_limit(request: Request, caller: Operator) -> LimitView:
    """What runs already goes on."""
    return await _set(request, caller, "global", "")


@router.put(
    "/limits/{scope}/{name:name}",
    operation_id="setLimit",
    summary="Limit how many jobs of a queue, a kind or some exclusive keys run",
    response_model=LimitView,
    responses=responses("not-found", *BODY_PROBLEMS),
    openapi_extra=body_of(LimitRequest, {"maxRunning": 5}),
)
async def set_limit(request: Request, caller: Operator, scope: LimitScope, name: LimitName) -> LimitView:
    """What runs already goes on. 0: nothing new starts."""
    return await _set(request, caller, scope, name)


@router.delete(
    "/limits/global",
    operation_id="dropGlobalLimit",
    summary="Take the global limit away",
    status_code=204,
    response_class=Response,
    responses=responses("not-found"),
)
async def drop_global_limit(request: Request, caller: Operator) -> Response:
    """404: there was none."""
    return await _drop(request, caller, "global", "")


@router.delete(
    "/limits/{scope}/{name:name}",
    operation_id="dropLimit",
    summary="Take a limit away",
    status_code=204,
    response_class=Response,
    responses=responses("not-found", "invalid-request"),
)
async def drop_limit(request: Request, caller: Operator, scope: LimitScope, name: LimitName) -> Response:
    """404: there was none."""
    return await _drop(request, caller, scope, name)


async def _set(
    request: Request, caller: Caller, scope: Literal["global", "queue", "kind", "key"], name: str
) -> LimitView:
    parts = await runtime(request)
    check_limit(caller, scope, name)
    wanted = await read_model(request, LimitRequest)
    await parts.database.arun(parts.database.store.set_limit(scope, name, wanted.max_running))
    return LimitView(scope=scope, name=name, max_running=wanted.max_running)


async def _drop(request: Request, caller: Caller, scope: str, name: str) -> Response:
    parts = await runtime(request)
    check_limit(caller, scope, name)
    if not await parts.database.arun(parts.database.store.drop_limit(scope, name)):
        raise Problem("not-found", "no such limit")
    return Response(status_code=204)


def _knows(caller: Caller, scope: str, name: str) -> bool:
    """A token for some queues or kinds knows of the limits on these, and of no others."""
    if caller.queues is None and caller.kinds is None:
        return True
    return (scope == "queue" and name in (caller.queues or ())) or (scope == "kind" and name in (caller.kinds or ()))


def check_limit(caller: Caller, scope: str, name: str) -> None:
    """Refuse a token that may not set this limit."""
    if not _knows(caller, scope, name):
        raise Problem("not-found", "no such limit")
    # Inside what it knows: a queue holds other kinds too, and a kind runs in other queues.
    if (scope == "queue" and caller.kinds is not None) or (scope == "kind" and caller.queues is not None):
        raise Problem("forbidden", f"a limit on a whole {scope} needs a token for all of it")
