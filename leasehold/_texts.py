"""What tasks write and raise, as text that can be stored.

Error texts and class names, reasons, progress notes and log lines come from code that we did not write. They pass
through `text_of` where they enter Leasehold, in a worker and in the processes of its tasks: half characters and NULs,
which PostgreSQL refuses, are spelled out, a long text is cut, and a value that cannot be printed is named instead.
"""

import math
from typing import Final

# Characters that are kept of each.
MAX_CLASS: Final = 200  # the name of an error's class
MAX_MESSAGE: Final = 2_000  # an error's message, and the reason for which a task cancels its job
MAX_TRACEBACK: Final = 20_000
MAX_NOTE: Final = 500  # of progress
MAX_LINE: Final = 1_000  # of log
MAX_LEVEL: Final = 20  # of a line of log


def text_of(value: object, limit: int) -> str:
    """Return the value as text that PostgreSQL can store, at most `limit` characters. Never raises."""
    try:
        text = str(value)  # the task's own code, which may raise anything, SystemExit included
        # By the methods of str itself: a class derived from it may have replaced them.
        length = str.__len__(text)
        head = str.__getitem__(text, slice(0, limit))
        tail = "" if length <= limit else str.__getitem__(text, slice(length - limit, length))
    except BaseException as broken:  # noqa: BLE001 (whatever it is, it must cost the attempt no more than this text)
        return storable(f"<no text: str() of {_name_of(value)} raised {_name_of(broken)}>")[:limit]
    head = storable(head)
    if not tail:  # it may have become longer
        return head if len(head) <= limit else _joined(head, head, limit, len(head))
    return _joined(head, storable(tail), limit, length)


def repr_of(value: object, limit: int = MAX_MESSAGE) -> str:
    """Return the value as Python would write it, under the same rules."""
    try:
        text = repr(value)
    except BaseException as broken:  # noqa: BLE001 (as above)
        return storable(f"<{_name_of(value)}, whose repr() raised {_name_of(broken)}>")[:limit]
    return text_of(text, limit)


def one_line(text: str, limit: int) -> str:
    """Return the text with nothing in it that would break a line or that a terminal would obey."""
    return _spelled(text_of(text, limit), keep="")


def many_lines(text: str) -> str:
    """Return the text with its lines and tabs, and nothing else in it that a terminal would obey."""
    return _spelled(text, keep="\n\t")


def _spelled(text: str, *, keep: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def storable(text: str) -> str:
    """Return the text with NULs and lone surrogates spelled out: PostgreSQL stores neither."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def fraction_of(value: float) -> float:
    """Return a part of a whole, from 0 to 1, as the database can keep it; ValueError for anything else."""
    number = float(value)
    if not 0 <= number <= 1:  # so is NaN
        raise ValueError(f"progress {number!r} is not between 0 and 1")
    return round(number, 6)  # a `real` cannot hold a number as small as 1e-300


def moment_of(value: float, now: float) -> float:
    """Return seconds since the epoch, or `now` when they are none."""
    return float(value) if math.isfinite(value) and 0 <= value < 1e11 else now


def _joined(head: str, tail: str, limit: int, length: int) -> str:
    """Return head and tail of a long text: where an error began and how it ended matter most."""
    note = f"\n[... cut: {length:,} characters in all ...]\n"
    if limit <= 2 * len(note):
        return head[: limit - 1] + "…"
    first = (limit - len(note)) // 2
    return head[:first] + note + tail[len(tail) - (limit - len(note) - first) :]


def _name_of(value: object) -> str:
    return str(type.__dict__["__name__"].__get__(type(value)))[:MAX_CLASS]  # not by the class's own metaclass
