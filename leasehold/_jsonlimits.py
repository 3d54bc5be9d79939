"""What PostgreSQL's jsonb refuses, or what would hurt it, found in a JSON text before it is sent.

`find_problem` looks at text, not at values: nothing is built, nothing recurses, and the answer comes in
one pass however hostile the text is. It does not judge syntax: that is the parser's work, which is safe
after this check (depth and digits are bounded).
"""

import json
import math
import re
from collections import deque
from collections.abc import Callable, Collection, ItemsView, Iterator, KeysView, Mapping, Sequence, Set, ValuesView
from dataclasses import dataclass
from typing import Any, Final

from leasehold._facts import MAX_PAYLOAD_BYTES

MAX_DEPTH: Final = 64
"""The deepest nesting of arrays and objects."""
MAX_NODES: Final = 100_000
"""The most values, counting keys, arrays and objects too."""
MAX_DIGITS: Final = 1_000
"""The longest number; jsonb would take 131,072 digits and Python's parser stops at 4,300."""
MAX_EXPONENT: Final = 400
"""The largest exponent; jsonb writes exponents out, so a few bytes could become many thousands."""

LONE_SURROGATE: Final = "contains a lone surrogate, which is not Unicode text; replace it or pass bytes"
"""What is said of half a character."""

_ELSEWHERE: Final = "store the data elsewhere and pass a reference to it"
_CONTAINERS: Final = (list, tuple, set, frozenset, deque, KeysView, ValuesView, ItemsView)
_USUAL: Final = frozenset({dict, list})
_SIZED: Final = (str, bytes, Sequence, Set, Mapping)
_NUMBERS: Final = frozenset({int, float, bool, type(None)})
_MOST_INTEGER: Final = 10 ** (4 * MAX_DIGITS)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
# After what a number can follow: the "0e840" within a UUID is no exponent, and common.
_EXPONENT: Final = re.compile(r"(?:\A|[\[,:\s])-?[0-9][0-9.]*+[eE][-+]?[0-9]{3}")
# Found three times as quickly, for it begins with a set of characters; what it does not find, the one above cannot.
_ANY_EXPONENT: Final = re.compile(r"[0-9.][eE][-+]?[0-9]{3}")
# One character in _STRIDE is sampled: a number of 200 digits, which two digits of an exponent may make too large for a
# float, shows up as ten samples in a row.
_STRIDE: Final = 20
_LONG_NUMBER: Final = re.compile(r"[0-9.]{10}")
# What the samples suggest is looked up: numbers of twenty digits, one after the other, look the same.
_LONG_INDEED: Final = re.compile(r"(?<![0-9.])[0-9.]{200}")
_NOT_BRACKETS: Final = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\Z)|[^\[\]{}"]++', re.DOTALL)
# Possessive quantifiers and the \Z keep an unterminated string linear instead of quadratic.
_TOKEN: Final = re.compile(
    r'"(?P<string>(?:[^"\\]++|\\.)*+)(?:"|\Z)(?P<colon>\s*+:)?'
    r"|(?P<open>[\[{])|(?P<close>[\]}])"
    r"|(?P<constant>-?(?:NaN|Infinity))|(?P<number>-?[0-9][0-9.eE+-]*+)|(?P<word>true|false|null)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class JsonProblem:
    """One reason why a value cannot be stored."""

    where: tuple[str | int, ...]
    """The path to the value; the first step is the key in the outermost object."""
    what: str
    """What is wrong, and what to do about it."""
    code: str = "limit"
    """`limit`, `json`, or pydantic's own name of the error."""


def find_hazard(value: object, max_bytes: int) -> JsonProblem | None:
    """Return the problem of a value that C code would write or read for seconds or for ever: no other thread runs then.

    An iterator is refused, however few values it would return: that is known only after the last one. Everything else
    is counted with the least that it can take, and no more of it is read than could be stored.
    """
    what = _hazard(value, max_bytes)
    if what is not None and type(value) is dict:
        for key, part in value.items():  # to name the argument
            if (of_one := _hazard(part, max_bytes)) is not None:
                return JsonProblem((str(key),), of_one)
    return None if what is None else JsonProblem((), what)


def _hazard(value: object, max_bytes: int) -> str | None:
    """Return what is wrong with the value. By the exact types first: nearly all values are of these and cost little."""
    size, nodes, pending = 0, 0, [value]
    while pending:
        part: Any = pending.pop()
        kind = type(part)
        if kind is int:
            if not -_MOST_INTEGER < part < _MOST_INTEGER:
                return f"an integer of far more than {MAX_DIGITS:,} digits; pass it as a string"
        elif kind is str:
            size += len(part)
        elif kind not in _NUMBERS:
            if kind not in _USUAL and hasattr(kind, "__next__") and not hasattr(kind, "__get_pydantic_core_schema__"):
                return f"a {kind.__name__} is an iterator, which may never end; pass or return a list"
            size += len(part) if kind in _USUAL or isinstance(part, _SIZED) else 0
            if size <= max_bytes:
                parts = part if kind is list else _parts(part)
                nodes += len(parts)
                pending.extend(parts)
        if size > max_bytes:
            return f"more than {max_bytes:,} bytes of JSON; {_ELSEWHERE}"
        if nodes > MAX_NODES:
            return f"more than {MAX_NODES:,} values, or a circular reference; {_ELSEWHERE}"
    return None


def _parts(value: Any) -> Collection[object]:
    """Return what is inside of a value that is written with what it contains."""
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, _CONTAINERS):
        return value
    if (names := getattr(type(value), "__dataclass_fields__", None)) is not None:
        return [getattr(value, name, None) for name in names]
    if hasattr(type(value), "__pydantic_fields__"):
        return [*value.__dict__.values(), *(getattr(value, "__pydantic_extra__", None) or {}).values()]
    return ()


def find_problem(text: str, *, max_bytes: int = MAX_PAYLOAD_BYTES) -> JsonProblem | None:
    """Return the first problem of a JSON text, or None when it can be stored."""
    # A character takes at most four bytes: most texts need not be encoded to be measured.
    if len(text) * 4 > max_bytes:
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        if size > max_bytes:
            return JsonProblem((), f"{size:,} bytes of JSON, the limit is {max_bytes:,}; {_ELSEWHERE}")
    return None if _harmless(text) else next(_walk(text), None)


def not_finite(number: float) -> str:
    """Return the message for NaN and the infinities."""
    return f"{number} is not a number in JSON; pass None or a string instead"


def _harmless(text: str) -> bool:
    """Return whether a few searches at the speed of C rule out every problem; True for nearly all texts."""
    opened = text.count("[") + text.count("{")
    return (
        "\\u" not in text
        and "\0" not in text
        and "NaN" not in text
        and "Infinity" not in text
        and (text.isascii() or not _SURROGATE.search(text))
        and not (_ANY_EXPONENT.search(text) and _EXPONENT.search(text))
        and (len(text) <= 10 * _STRIDE or not (_LONG_NUMBER.search(text[::_STRIDE]) and _LONG_INDEED.search(text)))
        and (len(text) <= MAX_NODES or opened + text.count(",") + text.count(":") < MAX_NODES)
        and (opened <= MAX_DEPTH or _shallow(text))
    )


def _shallow(text: str) -> bool:
    """Return whether the nesting is within the limit: many small objects are common, and need no walk."""
    depth = 0
    for bracket in _NOT_BRACKETS.sub("", text):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            return False
    return True


def _walk(text: str) -> Iterator[JsonProblem]:
    """Yield every problem of the text, token by token; callers stop at the first."""
    depth = nodes = 0
    where: tuple[str, ...] = ()
    for token in _TOKEN.finditer(text):
        group = token.lastgroup
        if group == "close":
            depth -= 1
            continue
        depth += group == "open"
        nodes += 1
        if group == "colon" and depth == 1:
            where = (token["string"],)
        if (judge := _TOKENS.get(group or "")) is not None and (what := judge(token)) is not None:
            yield JsonProblem(where, what)
        if depth > MAX_DEPTH:
            yield JsonProblem(where, f"nested deeper than {MAX_DEPTH} levels; flatten it")
        if nodes > MAX_NODES:
            yield JsonProblem((), f"more than {MAX_NODES:,} values; store them elsewhere and pass a reference")


def _string_problem(token: re.Match[str]) -> str | None:
    plain = body = token["string"]
    if "\\u" in body:
        try:
            plain = json.loads(f'"{body}"', strict=False)
        except ValueError:
            return None  # a broken escape is the parser's to report
    if "\0" in plain:
        return "contains the character NUL (\\u0000), which PostgreSQL cannot store; remove it"
    if _SURROGATE.search(plain):
        return LONE_SURROGATE
    return None


def _number_problem(token: re.Match[str]) -> str | None:
    number = token["number"]
    mantissa, _, exponent = number.lower().partition("e")
    digits = len(mantissa) - mantissa.count("-") - mantissa.count(".")
    if digits > MAX_DIGITS:
        return f"a number of {digits:,} digits, the limit is {MAX_DIGITS:,}; pass it as a string"
    power = exponent.lstrip("+-").lstrip("0")
    # The length is asked first: int() itself is slow, then refuses, on very long digits.
    if len(power) > 3 or (power.isdigit() and int(power) > MAX_EXPONENT) or _overflows(number):
        return f"the number {number[:40]} is out of range; pass it as a string"
    return None


def _overflows(number: str) -> bool:
    if number.lstrip("-").isdigit():
        return False
    try:
        return math.isinf(float(number))
    except ValueError:
        return False  # not a number at all: the parser's to report


_TOKENS: Final[dict[str, Callable[[re.Match[str]], str | None]]] = {
    "string": _string_problem,
    "colon": _string_problem,
    "number": _number_problem,
    "constant": lambda token: not_finite(float(token["constant"])),
}
