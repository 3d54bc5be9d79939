"""Serves operations under /ops: the caller, the values of the path and the query, the model of the answer."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache, partial
from inspect import signature
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError, create_model
from pydantic.alias_generators import to_camel, to_snake
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from leasehold.http.body import validated
from leasehold.http.front import Answer, Endpoint, Operation
from leasehold.http.problems import invalid, invalid_fields
from leasehold.http.runtime import Runtime
from leasehold.http.schemas import EXAMPLE_ID, Moment, Name, View, parameter
from leasehold.operate import operator
from leasehold.operate.caller import Caller
from leasehold.operate.operator import Operator
from leasehold.operate.refusals import id_of, page_of

WITHHELD: Final = "Only with the scope operate."
"""The description of a field that other callers do not get."""

_TIMES: Final = {datetime: Moment, datetime | None: Moment | None, timedelta: float, timedelta | None: float | None}
"""Times as RFC 3339, lengths of time in seconds."""

Shown: TypeAlias = type[View]
"""A model of what is sent."""


def shown(
    name: str, about: str, row: type | None = None, /, *leave: str, base: Shown = View,
    renamed: Mapping[str, str] | None = None, **given: Any,
) -> Shown:  # fmt: skip
    """Return a model with the fields of a row, but for those to `leave`; `renamed`: the API's names of some.

    `given`: more fields, or other types of the row's, each a type, with a description in a tuple, or WITHHELD. A list
    with a model in it is a list of these.
    """
    names = {"kind": "job_type", **(renamed or {})}
    types: dict[str, Any] = {}
    described: dict[str, str] = {}
    sources: dict[str, str] = {}
    for field, hint in (get_type_hints(row, include_extras=True) if row is not None else {}).items():
        if field in leave:
            continue
        new = names.get(field, field)
        types[new], described[new] = _described(hint)
        if new != field:
            sources[new] = field
    made: dict[str, Any] = {}
    for field in [*types, *(one for one in given if one not in types)]:
        known = given.get(field, types.get(field))
        if known is WITHHELD:
            kind, text = types.get(field, Any) | None, Field(None, description=WITHHELD)
        else:
            kind, text = known if isinstance(known, tuple) else (known, described.get(field))
        if isinstance(kind, list):
            kind = list[kind[0]]  # type: ignore[valid-type]
        if field in sources:
            kind = Annotated[kind, sources[field]]
        made[field] = kind, Field(description=text or None) if isinstance(text, str | None) else text
    return create_model(name, __base__=base, __doc__=about, **made)


def _described(hint: Any) -> tuple[Any, str]:
    """Return the type that the API shows for one of a row, and the description, which is the row's annotation."""
    kind, text = get_args(hint) if get_origin(hint) is Annotated else (hint, "")
    return _TIMES.get(kind, kind), text.replace("None", "null")


def view(model: Shown, row: object, **more: object) -> View:
    """Return a row, or a mapping, as the API shows it; `more`: fields that the row does not have."""
    found: dict[str, Any] = {}
    for name, (source, part) in _plan(model).items():
        value = more[name] if name in more else row[name] if isinstance(row, Mapping) else getattr(row, source)
        if isinstance(value, timedelta):
            value = value.total_seconds()
        elif isinstance(value, list) and part is not None:
            value = [one if isinstance(one, View) else view(part, one) for one in value]
        found[name] = value
    return model(**found)


@cache
def _plan(model: Shown) -> dict[str, tuple[str, Shown | None]]:
    """Return for each field of a model the row's name of it, and the model whose instances it is a list of."""
    return {
        name: (next(mark for mark in (*field.metadata, name) if isinstance(mark, str)), _model_in(field.annotation))
        for name, field in model.model_fields.items()
    }


def _model_in(annotation: Any) -> Shown | None:
    """Return the model whose instances a list holds."""
    for part in get_args(annotation):
        if isinstance(part, type) and issubclass(part, View):
            return part
        if (found := _model_in(part)) is not None:
            return found
    return None


F = TypeVar("F", bound=Callable[..., Awaitable[Any]])
T = TypeVar("T")

READS: Final = ("read", "operate")
"""The scopes of a caller that may read."""

_BODY_PROBLEMS: Final = ("malformed-json", "slow-body", "body-too-large", "unsupported-media-type", "invalid-request")

OPERATIONS: Final[list[Operation]] = []
"""All operations under /ops: a path with a longer fixed end before those that would match it too."""

_name: Final = TypeAdapter[Any](Name)


def _id(what: str) -> TypeAdapter[Any]:
    return TypeAdapter(Annotated[UUID, BeforeValidator(partial(id_of, what=what))])


_PATH: Final[dict[str, tuple[TypeAdapter[Any], str, str]]] = {
    "jobId": (_id("job"), "The job's id.", EXAMPLE_ID),
    "canaryId": (_id("canary"), "The canary's id.", EXAMPLE_ID),
    "tokenId": (_id("token"), "The token's id.", EXAMPLE_ID),
    "queue": (_name, "The queue's name.", "mail"),
    "key": (_name, "The schedule's key.", "nightly-report"),
    "scope": (TypeAdapter(Literal["queue", "kind", "key"]), "Of a queue, a kind, or exclusive keys.", "queue"),
    "name": (_name, "The queue, the kind, or what the exclusive keys begin with.", "mail"),
}
"""What each part of a path is: how it is read, its description, an example."""


CURSOR: Final = (str | None, "For the next page; null: that was all.")
"""The field of a page of a list."""


class PageQuery(View):
    """Which page."""

    cursor: Annotated[str, Field(max_length=10_000)] | None = Field(None, description="From the page before.")
    limit: int = Field(200, ge=1, le=1000, description="At most so many.")


def served(
    target: str, summary: str, *problems: str, scopes: Sequence[str] = ("operate",), status: int = 200,
    query: type[View] | None = None, body: type[BaseModel] | None = None,
    parameters: Sequence[Mapping[str, Any]] = (), result: Shown | None = None, example: Mapping[str, Any] | None = None,
) -> Callable[[F], F]:  # fmt: skip
    """Serve a function of an Operator, the values of the path, the checked query and, if it names it, the request.

    It returns what the model `result` shows, or a response. It reads its body itself: what the caller may not do at all
    is refused before.
    """
    method, path = target.split()
    in_path = [part[1:-1].partition(":")[0] for part in path.split("/") if part.startswith("{")]
    asked = [] if query is None else _of_query(query)
    if in_path or query:
        problems = (*problems, "invalid-request")

    def made(function: F) -> F:
        OPERATIONS.append(
            Operation(
                method=method, path=f"/ops{path}", endpoint=_endpoint(function, in_path, query, asked, status, result),
                name=to_camel(function.__name__), tag="ops", summary=summary, scopes=scopes, body=body, example=example,
                answers={status: {"description": "Successful Response"}}, result=result,
                parameters=[*map(_in_path, in_path), *asked, *parameters],
                problems=(*problems, *_BODY_PROBLEMS) if body else problems,
            )
        )  # fmt: skip
        return function

    return made


def _endpoint(
    function: F, in_path: Sequence[str], query: type[View] | None, asked: list[dict[str, Any]], status: int,
    result: Shown | None,
) -> Endpoint:  # fmt: skip
    """Return the endpoint that calls the function of an operation."""
    takes_request = "request" in signature(function).parameters
    lists = {one["name"] for one in asked if one["schema"].get("type") == "array"}

    async def endpoint(request: Request, parts: Runtime, caller: Caller) -> ASGIApp:
        values: dict[str, Any] = {to_snake(name): _read(name, request.path_params[name]) for name in in_path}
        if query is not None:
            given = request.query_params
            if twice := [n for n in given if n not in lists and len(given.getlist(n)) > 1]:
                raise invalid(*((name, "given more than once; give it once") for name in twice))
            values["query"] = validated(query, {n: given.getlist(n) if n in lists else given[n] for n in given})
        if takes_request:
            values["request"] = request
        found = await function(Operator(parts.database, caller), **values)
        if found is None or result is None:
            return Response(status_code=status)
        return found if callable(found) else Answer(status, as_json(result, found))

    endpoint.__doc__ = function.__doc__
    return endpoint


def listing(
    name: str, path: str, summary: str, read: operator.Operation[[], list[T]], row: Shown, key: Callable[[T], str], *,
    page: str, about: str, show: Callable[[T], object] = lambda row: row,
) -> None:  # fmt: skip
    """Serve pages of a list that is read as a whole. `key`: the text that each row has of its own."""
    rows: dict[str, Any] = {path: [row]}
    model = shown(name, page, cursor=CURSOR, **rows)

    async def function(op: Operator, query: PageQuery) -> dict[str, object]:
        found, cursor = page_of(await read(op), key, query.cursor, query.limit)
        return {path: [show(one) for one in found], "cursor": cursor}

    function.__name__, function.__doc__ = f"list_{path}", about
    served(f"GET /{path}", summary, "not-found", scopes=READS, query=PageQuery, result=model)(function)


def as_json(model: Shown, found: object) -> bytes:
    """Return what was found as the model shows it, in JSON."""
    return (found if isinstance(found, View) else view(model, found)).model_dump_json(by_alias=True).encode()


def _read(name: str, text: str) -> Any:
    try:
        return _PATH[name][0].validate_python(text)
    except ValidationError as error:
        raise invalid_fields({**part, "loc": (name,)} for part in error.errors()) from None


def _in_path(name: str) -> dict[str, Any]:
    adapter, description, example = _PATH[name]
    return parameter("path", name, description, adapter.json_schema(), example)


def _of_query(model: type[View]) -> list[dict[str, Any]]:
    """Return the parameters of a query: a field is there or it is not, and there is no null."""
    found = []
    for name, schema in model.model_json_schema()["properties"].items():
        for choice in schema.pop("anyOf", ()):
            schema.update(choice if choice != {"type": "null"} else {})
        if schema.get("default") is None:
            schema.pop("default", None)
        found.append(parameter("query", name, schema.get("description", ""), schema))
    return found
