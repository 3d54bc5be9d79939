"""Refusals of operations, and cursors, which say where a page begins."""

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias, TypeVar
from uuid import UUID

from leasehold.errors import LeaseholdError

T = TypeVar("T")

is_uuid: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII).fullmatch


Reason: TypeAlias = Literal["unknown", "forbidden", "finished", "wrong state"]
"""`unknown`: there is none, or the caller may not see it."""


class Refusal(LeaseholdError):
    """An operation was refused, and nothing was changed."""

    exit_code = 2

    def __init__(self, reason: Reason, message: str, *, job: UUID | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.job = job
        """The job that this is about."""


def unknown(what: str) -> Refusal:
    """Return the refusal for what there is not, or what the caller may not see: both get the same answer."""
    return Refusal("unknown", f"no such {what}")


def id_of(text: str, what: str = "job") -> UUID:
    """Return the id; raise a Refusal for what is not written as an id."""
    if not is_uuid(text):
        raise unknown(what)
    return UUID(text)


def page_of(items: Sequence[T], name: Callable[[T], str], cursor: str | None, limit: int) -> tuple[list[T], str | None]:
    """Return a page of a whole list, and the cursor of the next, which holds the last item's name; None: the last."""
    begin = 0
    if cursor is not None:
        last = read_cursor(cursor)
        begin = next((place for place, item in enumerate(items, 1) if name(item) == last), 0)
        if not begin:
            raise Refusal("unknown", "the item that this cursor names is gone; start again from the first page")
    end = begin + limit
    return list(items[begin:end]), write_cursor(name(items[end - 1])) if end < len(items) else None


def write_cursor(text: str) -> str:
    """Return the cursor that holds a text."""
    return base64.urlsafe_b64encode(text.encode("utf-8", "surrogatepass")).decode().rstrip("=")


def read_cursor(cursor: str) -> str:
    """Return the text that a cursor holds, or raise a Refusal."""
    try:
        found = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return found.decode("utf-8", "surrogatepass")
    except (binascii.Error, ValueError):
        raise invalid_cursor() from None


def invalid_cursor() -> Refusal:
    """Return the refusal of a cursor that is not from a page of ours."""
    return Refusal("unknown", "invalid cursor; use the one of the previous page, with the same filter")
