"""Values that no one expects: what producers and tasks say when they are wrong, unlucky or hostile."""

import dataclasses
import enum
import math
import re
import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any, Final


class Raw(str):
    """JSON text that Python would not write."""

    __slots__ = ()


class Colour(enum.Enum):
    """An enumeration."""

    RED = "red"


@dataclasses.dataclass
class Point:
    """A class of the user's."""

    x: int = 1
    y: Any = None


class Text(str):
    """A str that is more than one."""

    __slots__ = ("more",)

    def __str__(self) -> str:
        raise ValueError("no str of this")


class Number(int):
    """An int that says something else."""

    def __repr__(self) -> str:
        return "not a number \0"


class Hostile:
    """Everything that can be asked of it raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__

    def __eq__(self, _: object) -> bool:
        raise RuntimeError("no comparison")

    __hash__ = None  # type: ignore[assignment]


def _cycle() -> list[Any]:
    found: list[Any] = [1]
    found.append(found)
    return found


def _deep(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


TEXTS: Final[dict[str, str]] = {
    "empty text": "", "blank": " ", "NUL": "a\0b", "NUL alone": "\0", "lone high surrogate": "caf\ud800.txt",
    "lone low surrogate": "caf\udce9.txt", "swapped surrogates": "\udc00\ud800", "emoji": "😀👩‍👩‍👧", "noncharacter": "\uffff\ufffe",
    "last code point": "\U0010ffff", "right to left": "\u202eabc\u202c", "combining": "e" + "\u0301" * 200,
    "zero width": "\u200b\u200d\ufeff", "BOM": "\ufeffabc", "escape sequences": "\x1b[2J\x1b]0;owned\x07", "bell": "\a\b\v\f",
    "C1 controls": "\x80\x9b31m", "delete": "\x7f", "newlines": "a\r\nb\rc\n", "10,000 newlines": "\n" * 10_000,
    "line separators": "a\u2028b\u2029c\x85d", "quotes": "'\"`\\", "SQL": "'); drop table leasehold.jobs; --",
    "dollar quotes": "$$ $a$ $1", "percent": "%s %(x)s %% %n", "braces": "{0} {x!r} {{", "JSON": '{"a": [1', "HTML": "<script>1</script>",
    "path": "../../etc/passwd\n", "shell": "$(reboot) `id` ; &", "1 kB": "x" * 1000, "201 bytes": "q" * 201, "501 bytes": "k" * 501,
    "200 wide characters": "ß" * 200, "100 kB": "y" * 100_000, "2 MB": "z" * 2_000_000, "100 kB of quotes": '"' * 100_000,
    "Turkish": "ıİiI", "ligature": "\ufb03", "Kelvin": "\u212a", "numeral": "\u0663", "the word null": "null", "the word NaN": "NaN",
    "at sign": "@due", "at schedule": "@schedule", "reserved prefix": "schedule:nightly:2030-01-01T00:00:00Z", "star": "*", "dash": "--help",
    "equals": "=1+1", "colon": "a:b:c", "comma": "a,b", "slash": "a/b/../c", "tab": "a\tb", "infinity": "infinity", "minus infinity": "-infinity",
    "year 10000": "10000-01-01 00:00:00+00", "year 294276": "294276-12-31 23:59:59+00", "year 1 BC": "0001-01-01 00:00:00+00 BC",
    "year 1": "0001-01-01 00:00:00+00", "far past": "4713-01-01 00:00:00+00 BC", "tomorrow": "tomorrow", "now": "now", "epoch": "epoch",
    "leap second": "2016-12-31T23:59:60Z", "no zone": "2030-01-01T00:00:00", "odd zone": "2030-01-01T00:00:00+15:59",
    "200 years": "200 years", "178000000 years": "178000000 years", "negative interval": "-1 hour", "1e9 days": "1000000000 days",
}  # fmt: skip
"""Text, and times as text."""

OBJECTS: Final[dict[str, Any]] = {
    "null": None, "true": True, "zero": 0, "minus zero": -0.0, "NaN number": math.nan, "infinite number": math.inf,
    "minus infinite number": -math.inf, "1e308": 1e308, "5e-324": 5e-324, "2^31": 2**31, "-2^31-1": -(2**31) - 1, "2^53+1": 2**53 + 1,
    "2^63": 2**63, "2^64": 2**64, "10^400": 10**400, "10^5000": 10**5000, "0.1+0.2": 0.1 + 0.2, "negative": -1, "32768": 32768,
    "decimal": Decimal("1.10"), "decimal NaN": Decimal("NaN"), "decimal bomb": Decimal("1e131071"), "fraction": Fraction(1, 3),
    "complex": 1j, "bytes": b"\xff\0", "bytearray": bytearray(b"x"), "set": {1, 2}, "tuple": (1, (2,)), "empty list": [],
    "empty object": {}, "nested 100": _deep(100), "nested 900": _deep(900), "nested 5000": _deep(5000), "cycle": _cycle(),
    "10,000 keys": {str(n): n for n in range(10_000)}, "empty key": {"": 1}, "NUL key": {"a\0": 1}, "surrogate key": {"\ud800": 1},
    "number keys": {1: 2, 2.5: 3}, "none key": {None: 1}, "tuple keys": {(1, 2): 3}, "long key": {"k" * 100_000: 1},
    "clashing keys": {1: "a", "1": "b"}, "100,000 numbers": list(range(100_000)), "strings in a list": ["\0", "\ud800", ""],
    "naive time": datetime(2030, 1, 1), "first time": datetime.min.replace(tzinfo=UTC), "last time": datetime.max.replace(tzinfo=UTC),  # noqa: DTZ001
    "odd offset": datetime(2030, 1, 1, tzinfo=timezone(timedelta(hours=23, minutes=59, seconds=59))), "day": date(2030, 1, 1),
    "longest timedelta": timedelta.max, "negative timedelta": timedelta(seconds=-1), "uuid": uuid.UUID(int=0), "posix path": PurePosixPath("/x"),
    "enum": Colour.RED, "class": Point, "instance": Point(), "instance with NUL": Point(y="\0"), "lambda": lambda: 1, "module": math,
    "object": object(), "hostile object": Hostile(), "str subclass": Text("a\0"), "int subclass": Number(3), "pattern": re.compile("x"),
    "exception": ValueError("x\0"), "exception class": KeyboardInterrupt, "generator": (n for n in range(3)), "range": range(3),
    "memoryview": memoryview(b"x"), "ellipsis": ..., "not implemented": NotImplemented,
    "printed size bomb": Raw('{"a":[' + "1e131071," * 9000 + "1]}"), "small bomb": Raw('{"a":1e100000}'), "duplicate keys": Raw('{"a":1,"a":2}'),
    "escaped NUL": Raw('{"a":"\\u0000"}'), "escaped lone surrogate": Raw('{"a":"\\ud800"}'), "no object": Raw("[1]"), "no JSON": Raw("{'a':1}"),
    "JSON text": Raw('"x"'), "JSON null": Raw("null"), "huge escapes": Raw('{"a":"' + "\\u00e9" * 50_000 + '"}'),
    "deep JSON": Raw('{"a":' + "[" * 5000 + "]" * 5000 + "}"), "9 MB": Raw('{"a":"' + "x" * 9_000_000 + '"}'),
}  # fmt: skip
"""Everything else."""

VALUES: Final[dict[str, Any]] = TEXTS | OBJECTS
