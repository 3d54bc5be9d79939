"""Reading a request's body: so many bytes, within so much time, JSON, and nothing but what was asked for."""

import asyncio
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from leasehold.http.parsing import checked_text, parse
from leasehold.http.problems import Problem, invalid
from leasehold.http.settings import ApiSettings
from leasehold.intent import MAX_KEY_BYTES

M = TypeVar("M", bound=BaseModel)
P = ParamSpec("P")
T = TypeVar("T")

_LARGE: Final = 32 * 1024
"""Bytes of a body that takes longer to read than it takes to hand it to another thread."""

_READER: Final = ThreadPoolExecutor(1, "leasehold-bodies")
"""One for all: more would only take the interpreter away from the event loop more often."""

_CLOSE = {"connection": "close"}
"""The rest of the body is not read, so the connection is of no further use."""

_LONGEST_NAME = 200
"""How much of a field's name is repeated in an answer: the client made it up."""

_JSON = (b"application/json", b"application/json; charset=utf-8", b"application/json;charset=utf-8")

KEY_HEADER: Final[dict[str, Any]] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Names this request: sent twice, it is done once.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 500, "pattern": "^[!-~]([ -~]*[!-~])?$"},
}
"""In the API's description."""

_is_name: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*").fullmatch
_fits_header: Final = re.compile(rb"[!-~](?:[ -~]*[!-~])?").fullmatch


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of a name."""
    for key, value in scope["headers"]:
        if key == name:
            return value  # type: ignore[no-any-return]
    return None


def header_key(request: Request) -> str | None:
    """The idempotency key in the header, if there is one."""
    value: bytes | None = None
    for name, one in request.scope["headers"]:
        if name == b"idempotency-key":
            if value is not None:
                raise Problem("key-conflict", "there are two Idempotency-Key headers: send one of them")
            value = one
    if value is None:
        return None
    if len(value) > MAX_KEY_BYTES or not _fits_header(value):
        raise invalid(("Idempotency-Key", "1 to 500 printable ASCII characters"))
    return value.decode("ascii")


async def read_body(request: Request, *, most: int, seconds: float) -> bytes:
    """The body, if it is JSON by its header, is not too large and comes in time."""
    scope = request.scope
    kind = length = encoding = None
    for name, value in scope["headers"]:
        if name == b"content-type":
            kind = kind or value
        elif name == b"content-length":
            length = length or value
        elif name == b"content-encoding":
            encoding = encoding or value
    _check_media_type(kind)
    if encoding is not None and encoding.lower() != b"identity":
        shown = encoding.decode("latin-1")[:100]
        raise Problem("unsupported-media-type", f"Content-Encoding {shown!r}: send the body as it is")
    if length is not None and length.isdigit() and int(length) > most:
        raise _too_large(most)
    try:
        async with asyncio.timeout(seconds):
            return await _gather(request, most)
    except TimeoutError:
        raise Problem("slow-body", f"the body was not complete after {seconds:g} s", headers=_CLOSE) from None


async def _gather(request: Request, most: int) -> bytes:
    message = await request.receive()
    first: bytes = message.get("body", b"")
    parts, size = [first], len(first)
    while message["type"] == "http.request" and message.get("more_body") and size <= most:
        message = await request.receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
    if message["type"] != "http.request":
        raise ClientDisconnect
    if size > most:
        raise _too_large(most)
    return first if len(parts) == 1 else b"".join(parts)


async def read_aside(body: bytes, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `read` makes of a body. A large one is read beside the event loop, which others wait for."""
    if len(body) <= _LARGE:
        return read(*args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_READER, partial(read, *args, **kwargs))


async def read_form(request: Request, *, most: int, seconds: float) -> dict[str, str]:
    """The fields of an HTML form, the last of each name."""
    try:
        async with asyncio.timeout(seconds):
            body = await _gather(request, most)
    except TimeoutError:
        raise Problem("slow-body", f"the body was not complete after {seconds:g} s", headers=_CLOSE) from None
    try:
        return dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=100))
    except ValueError as error:
        raise invalid(("", f"not a form: {error}")) from None


def _too_large(most: int) -> Problem:
    return Problem("body-too-large", f"the limit is {most:,} bytes", headers=_CLOSE)


def _check_media_type(value: bytes | None) -> None:
    if value in _JSON:
        return
    name, _, parameters = (value or b"").lower().partition(b";")
    charset = parameters.replace(b" ", b"").replace(b'"', b"")
    if name.strip() != b"application/json" or charset not in {b"", b"charset=utf-8"}:
        shown = (value or b"nothing").decode("latin-1")[:100]
        raise Problem("unsupported-media-type", f"{shown!r} is not application/json in UTF-8")


async def read_model(request: Request, model: type[M], settings: ApiSettings | None = None) -> M:
    """A small JSON body as a model."""
    settings = settings or request.app.state.leasehold.settings
    body = await read_body(request, most=settings.body_bytes, seconds=settings.body_seconds)
    return await read_aside(body, lambda: validated(model, parse(checked_text(body, most=settings.body_bytes))))


def validated(model: type[M], document: Any, prefix: str = "") -> M:
    """The document as a model, or a Problem that names each wrong field."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise invalid(*errors_of(error, prefix)) from None


def errors_of(error: ValidationError, prefix: str = "") -> list[tuple[str, str]]:
    """Each wrong field and what is wrong with it, at most ten."""
    return [
        ((prefix + field_of(part["loc"]))[:_LONGEST_NAME], words(part["type"], part["msg"]))
        for part in error.errors(include_url=False, include_context=False, include_input=False)[:10]
    ]


def field_of(place: tuple[int | str, ...]) -> str:
    """A field's name, without pydantic's own words for the kinds of value that it has tried."""
    return ".".join(str(part) for n, part in enumerate(place) if n == 0 or isinstance(part, int) or _is_name(part))


def words(kind: str, message: str) -> str:
    """What is wrong."""
    if kind == "extra_forbidden":
        return "unknown field"
    return message.removeprefix("Value error, ")


def body_of(model: type[BaseModel], example: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The `openapi_extra` of a route that reads its body with `read_model`."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)
    content: dict[str, Any] = {"schema": schema}
    if example is not None:
        content["example"] = dict(example)
    return {"requestBody": {"required": True, "content": {"application/json": content}}, **more}
