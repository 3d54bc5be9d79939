"""What PostgreSQL's jsonb refuses, or what would hurt it, found in a JSON text before it is sent.

`find_problem` looks at text, not at values: nothing is built, nothing recurses, and the answer comes in
one pass however hostile the text is. It does not judge syntax: that is the parser's work, which is safe
after this check (depth and digits are bounded).
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

MAX_PAYLOAD_BYTES: Final = 1024 * 1024
"""The largest JSON text, in UTF-8."""
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
_CONTAINERS: Final = frozenset({list, tuple, dict, set, frozenset})
_NUMBERS: Final = frozenset({int, float, bool, type(None)})
_FEW: Final = 16
_SHORT: Final = 1000
_LOOKS: Final = 4000
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
# After what a number can follow: the "0e840" within a UUID is no exponent, and common.
_EXPONENT: Final = re.compile(r"(?:\A|[\[,:\s])-?[0-9][0-9.]*+[eE][-+]?[0-9]{3}")
# One character in _STRIDE is sampled: a number too long shows up as ten samples in a row.
_STRIDE: Final = MAX_DIGITS // 10
_LONG_NUMBER: Final = re.compile(r"[0-9.]{10}")
_NOT_BRACKETS: Final = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\Z)|[^\[\]{}"]++', re.DOTALL)
# Possessive quantifiers and the \Z keep an unterminated string linear instead of quadratic.
_TOKEN: Final = re.compile(
    r'"(?P<string>(?:[^"\\]++|\\.)*+)(?:"|\Z)(?P<colon>\s*+:)?'
    r"|(?P<open>[\[{])|(?P<close>[\]}])"
    r"|(?P<constant>-?(?:NaN|Infinity))|(?P<number>-?[0-9][0-9.eE+-]*+)|(?P<word>true|false|null)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason why a value cannot be stored."""

    where: tuple[str | int, ...]
    """The path to the value; the first step is the key in the outermost object."""
    what: str
    """What is wrong, and what to do about it."""
    code: str = "limit"
    """`limit`, `json`, or pydantic's own name of the error."""


def surely_over(value: object, max_bytes: int) -> Problem | None:
    """The problem of a value whose text would certainly be too long, found without writing it.

    To write hundreds of megabytes takes seconds in C code, in which no other thread runs. Only builtin containers and
    texts are counted, each with the least that it can take, and of many only the first: to look at all of them would
    take longer than to write them.
    """
    if type(value) is dict and len(value) <= _FEW and _small(value):
        return None
    size, looks, pending = 0, 0, [value]
    while pending and looks < _LOOKS:
        looks += 1
        part = pending.pop()
        kind = type(part)
        if kind is str or kind is bytes:
            size += len(part)  # type: ignore[arg-type]
        elif kind in _CONTAINERS:
            size += 2 * len(part)  # type: ignore[arg-type]
            if size <= max_bytes:
                pending.extend(part)  # type: ignore[arg-type]
                if kind is dict:
                    pending.extend(part.values())  # type: ignore[attr-defined]
        if size > max_bytes:
            return Problem((), f"more than {max_bytes:,} bytes of JSON; {_ELSEWHERE}")
    return None


def _small(value: dict[Any, Any]) -> bool:
    """Whether it has short texts and numbers only: most have, and shall cost next to nothing."""
    for part in value.values():
        kind = type(part)
        if kind is str:
            if len(part) > _SHORT:
                return False
        elif kind not in _NUMBERS:
            return False
    return True


def find_problem(text: str, *, max_bytes: int = MAX_PAYLOAD_BYTES) -> Problem | None:
    """The first problem of a JSON text, or None when it can be stored."""
    # A character takes at most four bytes: most texts need not be encoded to be measured.
    if len(text) * 4 > max_bytes:
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        if size > max_bytes:
            return Problem((), f"{size:,} bytes of JSON, the limit is {max_bytes:,}; {_ELSEWHERE}")
    return None if _harmless(text) else next(_walk(text), None)


def not_finite(number: float) -> str:
    """What is said of NaN and the infinities."""
    return f"{number} is not a number in JSON; pass None or a string instead"


def _harmless(text: str) -> bool:
    """Whether a few searches at the speed of C rule out every problem; True for nearly all texts."""
    opened = text.count("[") + text.count("{")
    return (
        "\\u" not in text
        and "\0" not in text
        and "NaN" not in text
        and "Infinity" not in text
        and (text.isascii() or not _SURROGATE.search(text))
        and not _EXPONENT.search(text)
        and (len(text) <= MAX_DIGITS or not _LONG_NUMBER.search(text[::_STRIDE]))
        and (len(text) <= MAX_NODES or opened + text.count(",") + text.count(":") < MAX_NODES)
        and (opened <= MAX_DEPTH or _shallow(text))
    )


def _shallow(text: str) -> bool:
    """Whether the nesting is within the limit: many small objects are common, and need no walk."""
    depth = 0
    for bracket in _NOT_BRACKETS.sub("", text):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            return False
    return True


def _walk(text: str) -> Iterator[Problem]:
    """Every problem of the text, token by token; callers stop at the first."""
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
        if (what := _token_problem(token)) is not None:
            yield Problem(where, what)
        if depth > MAX_DEPTH:
            yield Problem(where, f"nested deeper than {MAX_DEPTH} levels; flatten it")
        if nodes > MAX_NODES:
            yield Problem((), f"more than {MAX_NODES:,} values; store them elsewhere and pass a reference")


def _token_problem(token: re.Match[str]) -> str | None:
    match token.lastgroup:
        case "string" | "colon":
            return _string_problem(token["string"])
        case "number":
            return _number_problem(token["number"])
        case "constant":
            return not_finite(float(token["constant"]))
    return None


def _string_problem(body: str) -> str | None:
    plain = body
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


def _number_problem(number: str) -> str | None:
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
