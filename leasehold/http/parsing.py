"""JSON bodies, read without losing anything: the exact text of a value stays at hand, a field named twice is refused.

A payload goes to the database as it was sent: decoding it and encoding it again would change its numbers.
"""

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn

from leasehold.http.problems import Problem, invalid
from leasehold.jsonlimits import find_problem

_skip_space: Final = re.compile(r"[ \t\n\r]*").match
# The usual shapes in one step; whatever does not match is looked at piece by piece, for the sake of the message.
_field: Final = re.compile(r'[ \t\n\r]*+"([^"\\\x00-\x1f]*+)"[ \t\n\r]*+:[ \t\n\r]*+').match
_after: Final = re.compile(r"[ \t\n\r]*+([,}])").match


class Member(NamedTuple):
    """A field's value, and where its text stands."""

    value: Any
    begin: int
    end: int


def checked_text(body: bytes, *, most: int) -> str:
    """The text of a body that can be parsed and stored safely, or a Problem."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise Problem("malformed-json", f"not UTF-8: byte {error.start} is no part of a character") from None
    if (problem := find_problem(text, max_bytes=most)) is not None:
        raise invalid((".".join(map(str, problem.where)), problem.what))
    return text


def parse(text: str) -> Any:
    """The value of a checked text."""
    try:
        return _decoder.decode(text)
    except json.JSONDecodeError as error:
        _malformed(error.msg, error.pos)


def parse_members(text: str, at: int = 0) -> tuple[dict[str, Member], int]:
    """The fields of the object that begins at `at`, and where it ends. Values are parsed by the C parser."""
    members: dict[str, Member] = {}
    at = _open(text, at, "{", "a JSON object")
    while True:
        if (field := _field(text, at)) is not None:
            name, begin = field[1], field.end()
        else:
            at = _skip_space(text, at).end()  # type: ignore[union-attr] # matches the empty text
            if text[at : at + 1] == "}" and not members:
                return members, at + 1
            name, at = _name(text, at)
            begin = _skip_space(text, _expect(text, at, ":", "':'")).end()  # type: ignore[union-attr]
        value, at = parse_value(text, begin)
        if name in members:
            raise _twice(name)
        members[name] = Member(value, begin, at)
        if (after := _after(text, at)) is None:
            _malformed("Expecting ',' or '}'", _skip_space(text, at).end())  # type: ignore[union-attr]
        at = after.end()
        if after[1] == "}":
            return members, at


def parse_value(text: str, at: int) -> tuple[Any, int]:
    """The value that begins at `at`, and where it ends."""
    try:
        return _scan(text, at)
    except StopIteration as stop:
        _malformed("Expecting a value", stop.value)
    except json.JSONDecodeError as error:
        _malformed(error.msg, error.pos)


def parse_items(text: str, at: int) -> tuple[list[dict[str, Member]], int]:
    """The objects of the array that begins at `at`, and where it ends."""
    items: list[dict[str, Member]] = []
    at = _open(text, at, "[", "a JSON array")
    if text[(end := _skip_space(text, at).end()) : end + 1] == "]":  # type: ignore[union-attr]
        return items, end + 1
    while True:
        item, at = parse_members(text, at)
        items.append(item)
        at = _skip_space(text, at).end()  # type: ignore[union-attr]
        match text[at : at + 1]:
            case ",":
                at += 1
            case "]":
                return items, at + 1
            case _:
                _malformed("Expecting ',' or ']'", at)


def expect_end(text: str, at: int) -> None:
    """Nothing may follow."""
    if (end := _skip_space(text, at).end()) != len(text):  # type: ignore[union-attr]
        _malformed("Extra data", end)


def _name(text: str, at: int) -> tuple[str, int]:
    if text[at : at + 1] != '"':
        _malformed("Expecting a field name in double quotes", at)
    try:
        return json.decoder.scanstring(text, at + 1, True)  # type: ignore[attr-defined,no-any-return]
    except json.JSONDecodeError as error:
        _malformed(error.msg, error.pos)


def _expect(text: str, at: int, mark: str, what: str) -> int:
    at = _skip_space(text, at).end()  # type: ignore[union-attr]
    if text[at : at + 1] != mark:
        _malformed(f"Expecting {what}", at)
    return at + 1


def _open(text: str, at: int, mark: str, what: str) -> int:
    at = _skip_space(text, at).end()  # type: ignore[union-attr]
    if text[at : at + 1] != mark:
        parse_value(text, at)  # if this is no JSON at all, that is to be said
        raise invalid(("", f"not {what} at character {at}"))
    return at + 1


def _malformed(what: str, at: int) -> NoReturn:
    raise Problem("malformed-json", f"{what} at character {at}") from None


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
