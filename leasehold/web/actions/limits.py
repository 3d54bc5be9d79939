"""How many jobs may run at the same time."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from starlette.responses import Response

from leasehold.http.ops.limits import check_limit
from leasehold.http.problems import Problem, invalid
from leasehold.http.schemas import Asked
from leasehold.web.visit import Visit

Scope = Literal["global", "queue", "kind", "key"]


def _number(value: object) -> object:
    return int(value) if isinstance(value, str) and value.strip().isdigit() else value


class SetLimit(Asked):
    """How many, of what."""

    scope: Scope
    name: Annotated[str, Field(max_length=200)] = ""
    max_running: Annotated[int, BeforeValidator(_number), Field(ge=0, le=2_147_483_647)]


class ClearLimit(Asked):
    """Of what."""

    scope: Scope
    name: Annotated[str, Field(max_length=200)] = ""


async def set_limit(visit: Visit, wanted: SetLimit) -> Response:
    """Set a limit; what runs already goes on."""
    name = _checked(visit, wanted.scope, wanted.name)
    await visit.ask(visit.store.set_limit(wanted.scope, name, wanted.max_running))
    return visit.done(f"at most {wanted.max_running:,} may run at the same time")


async def clear_limit(visit: Visit, wanted: ClearLimit) -> Response:
    """Take a limit away."""
    name = _checked(visit, wanted.scope, wanted.name)
    if not await visit.ask(visit.store.drop_limit(wanted.scope, name)):
        raise Problem("not-found", "no such limit")
    return visit.done("the limit is gone")


def _checked(visit: Visit, scope: str, name: str) -> str:
    if scope == "global":
        name = ""
    elif not name:
        raise invalid(("name", f"which {scope}?"))
    check_limit(visit.visitor.caller, scope, name)
    return name
