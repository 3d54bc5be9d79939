"""Reading a request's body: so many bytes, within so much time, JSON, and nothing but what was asked for.

A payload goes to the database as it was sent: decoding it and encoding it again would change its numbers. So the place
of each field's text is kept, and a field that is there twice is refused.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from leasehold._facts import MAX_KEY_BYTES
from leasehold._jsonlimits import find_problem
from leasehold.http.problems import Problem, invalid, invalid_fields
from leasehold.http.settings import ApiSettings

M = TypeVar("M", bound=BaseModel)
P = ParamSpec("P")
T = TypeVar("T")

_READER: Final = ThreadPoolExecutor(1, "leasehold-bodies")
"""One for all: more would only take the interpreter away from the event loop more often."""

_CLOSE = {"connection": "close"}
"""The rest of the body is not read, so the connection is of no further use."""

_JSON = (b"application/json", b"application/json; charset=utf-8", b"application/json;charset=utf-8")

_fits_header: Final = re.compile(rb"[!-~](?:[ -~]*[!-~])?").fullmatch


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first header of a name."""
    return next((value for key, value in scope["headers"] if key == name), None)


def header_key(request: Request) -> str | None:
    """Return the idempotency key in the header, if there is one."""
    values = [value for name, value in request.scope["headers"] if name == b"idempotency-key"]
    if len(values) > 1:
        raise Problem("key-conflict", "there are two Idempotency-Key headers: send one of them")
    if values and (len(values[0]) > MAX_KEY_BYTES or not _fits_header(values[0])):
        raise invalid(("Idempotency-Key", "1 to 500 printable ASCII characters"))
    return values[0].decode("ascii") if values else None


async def read_body(request: Request, *, most: int, seconds: float) -> bytes:
    """Return the body, if it is JSON by its header, is not too large and comes in time."""
    names = (b"content-type", b"content-length", b"content-encoding")
    kind, length, encoding = (header(request.scope, name) for name in names)
    if kind not in _JSON:
        media, _, parameters = (kind or b"").lower().partition(b";")
        charset = parameters.replace(b" ", b"").replace(b'"', b"")
        if media.strip() != b"application/json" or charset not in {b"", b"charset=utf-8"}:
            shown = (kind or b"nothing").decode("latin-1")[:100]
            raise Problem("unsupported-media-type", f"{shown!r} is not application/json in UTF-8")
    if encoding is not None and encoding.lower() != b"identity":
        shown = encoding.decode("latin-1")[:100]
        raise Problem("unsupported-media-type", f"Content-Encoding {shown!r}: send the body as it is")
    if length is not None and length.isdigit() and int(length) > most:
        raise _too_large(most)
    return await _gather(request, most, seconds)


class _Begun:
    """A coroutine that was run until it has to wait: `result`, if it has ended; else await the rest."""

    __slots__ = ("_coroutine", "_waits_for", "result")

    def __init__(self, coroutine: Any) -> None:
        self.result: Any = None
        self._coroutine = coroutine
        self._run(coroutine.send, None)

    def _run(self, step: Callable[[Any], Any], value: Any) -> None:
        try:
            self._waits_for = step(value)
        except StopIteration as end:
            self.result = end.value

    def __await__(self) -> Generator[Any, None, Any]:
        while self.result is None:
            try:
                sent = yield self._waits_for
            except BaseException as error:  # noqa: BLE001 (it is the coroutine's, as a cancellation is)
                self._run(self._coroutine.throw, error)
            else:
                self._run(self._coroutine.send, sent)
        return self.result


async def _gather(request: Request, most: int, seconds: float) -> bytes:
    first = _Begun(request.receive())
    if first.result is not None and not first.result.get("more_body"):
        return await _received(request, first, most)  # all of it has arrived: no timer is needed
    try:
        async with asyncio.timeout(seconds):
            return await _received(request, first, most)
    except TimeoutError:
        raise Problem("slow-body", f"the body was not complete after {seconds:g} s", headers=_CLOSE) from None


async def _received(request: Request, begun: _Begun, most: int) -> bytes:
    message = await begun
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
    """Return what `read` makes of a body. A large one is read beside the event loop, which others wait for."""
    if len(body) <= 32 * 1024:  # a larger one takes longer to read than to hand over to another thread
        return read(*args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_READER, partial(read, *args, **kwargs))


async def read_form(request: Request, *, most: int, seconds: float) -> ImmutableMultiDict[str, str]:
    """Return the fields of an HTML form; the last of each name, unless all are asked for."""
    body = await _gather(request, most, seconds)
    try:
        return ImmutableMultiDict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=100))
    except ValueError as error:
        raise invalid(("", f"not a form: {error}")) from None


def _too_large(most: int) -> Problem:
    return Problem("body-too-large", f"the limit is {most:,} bytes", headers=_CLOSE)


async def read_model(request: Request, model: type[M]) -> M:
    """Return a small JSON body as a model."""
    settings: ApiSettings = request.app.state.leasehold.settings
    body = await read_body(request, most=settings.body_bytes, seconds=settings.body_seconds)
    return await read_aside(body, lambda: validated(model, parse(checked_text(body, most=settings.body_bytes))))


def validated(model: type[M], document: Any, prefix: str = "") -> M:
    """Return the document as a model, or a Problem that names each wrong field."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise invalid_fields(found, prefix) from None


# -- JSON

_SPACE: Final = r"[ \t\n\r]*+"
_PLAIN: Final = r'[^"\\\x00-\x1f]*+'
_opening: Final = re.compile(rf"{_SPACE}([{{\[])(?:{_SPACE}([}}\]]))?").match
_field: Final = re.compile(rf'{_SPACE}"({_PLAIN}(?:\\.{_PLAIN})*+)"{_SPACE}:{_SPACE}').match
_after: Final = re.compile(rf"{_SPACE}([,}}\]])").match
_ending: Final = re.compile(rf"{_SPACE}\Z").match


Member: TypeAlias = tuple[Any, int, int]
"""A field's value, and where its text begins and ends."""


def checked_text(body: bytes, *, most: int) -> str:
    """Return the text of a body that can be parsed and stored safely, or a Problem."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise Problem("malformed-json", f"not UTF-8: byte {error.start} is no part of a character") from None
    if (problem := find_problem(text, max_bytes=most)) is not None:
        raise invalid((".".join(map(str, problem.where)), problem.what))
    return text


def parse(text: str) -> Any:
    """Return the value of a checked text."""
    try:
        return _decoder.decode(text)
    except json.JSONDecodeError as error:
        raise Problem("malformed-json", f"{error.msg.removesuffix(' at')} at character {error.pos}") from None


def read_object(body: bytes, *, most: int) -> tuple[str, dict[str, Member]]:
    """Return the text of a body that is an object, and its fields."""
    text = checked_text(body, most=most)
    members, end = _members(text, 0)
    if not _ending(text, end):
        raise _malformed(text)
    return text, members


def read_objects(text: str, at: int) -> list[dict[str, Member]]:
    """Return the fields of each object in the array that begins at `at`, in a text that `read_object` has read."""
    at, ended = _open(text, at, "[")
    items: list[dict[str, Member]] = []
    while not ended:
        item, at = _members(text, at)
        items.append(item)
        at, ended = _next(text, at, "]")
    return items


def _members(text: str, at: int) -> tuple[dict[str, Member], int]:
    """Return the fields of the object that begins at `at`, and where it ends. The C parser reads the values."""
    members: dict[str, Member] = {}
    at, ended = _open(text, at, "{")
    while not ended:
        if (field := _field(text, at)) is None:
            raise _malformed(text)
        name, begin = field[1], field.end()
        try:
            if "\\" in name:
                name = json.loads(f'"{name}"')
            value, end = _scan(text, begin)
        except (StopIteration, json.JSONDecodeError):
            raise _malformed(text) from None
        if name in members:
            raise _twice(name)
        members[name] = value, begin, end
        if (mark := text[end : end + 1]) in {",", "}"}:  # the usual case, without a call
            at, ended = end + 1, mark == "}"
        else:
            at, ended = _next(text, end, "}")
    return members, at


def _open(text: str, at: int, mark: str) -> tuple[int, bool]:
    """Return where the first item of an object or an array begins, and whether there is none."""
    found = _opening(text, at)
    if found is None or found[1] != mark:
        parse(text)  # a text that is not JSON at all is refused as such
        raise invalid(("", f"not a JSON {'object' if mark == '{' else 'array'} at character {at}"))
    return found.end(), found[2] is not None


def _next(text: str, at: int, mark: str) -> tuple[int, bool]:
    """Return where the next item begins, and whether there is none."""
    found = _after(text, at)
    if found is None or found[1] not in {",", mark}:
        raise _malformed(text)
    return found.end(), found[1] == mark


def _malformed(text: str) -> Problem:
    """Return what is wrong with a text that could not be read: json knows the words and the place."""
    try:
        parse(text)
    except Problem as problem:
        return problem
    return Problem("malformed-json", "the body is not JSON")


def _twice(name: str) -> Problem:
    return Problem("malformed-json", f"the field {name[:100]!r} is there twice")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        # Counted in one pass: a body may have tens of thousands of names.
        raise _twice(next(name for name, number in Counter(name for name, _ in pairs).items() if number > 1))
    return found


_decoder: Final = json.JSONDecoder(object_pairs_hook=_unique)
_scan: Final[Callable[[str, int], tuple[Any, int]]] = _decoder.scan_once  # type: ignore[attr-defined]
