"""Pages of lists that are read as a whole: the cursor names the last item of the page before."""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, Final, TypeVar

from fastapi import Query
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from leasehold.http.problems import Problem
from leasehold.http.schemas import View

T = TypeVar("T")

CURSOR: Final = "For the next page; null: that was all."
"""What the field of an answer says."""


class PageQuery(View):
    """Which page."""

    cursor: Annotated[str, Field(max_length=10_000)] | SkipJsonSchema[None] = Field(
        None, description="From the page before."
    )
    limit: int = Field(200, ge=1, le=1000, description="At most so many.")


Page = Annotated[PageQuery, Query()]


def page_of(items: Sequence[T], page: PageQuery, name: Callable[[T], str]) -> tuple[list[T], str | None]:
    """The items of a page, and the cursor for the next one. Each item has a name of its own."""
    begin = 0
    if page.cursor is not None:
        last = _opened(page.cursor)
        begin = next((place for place, item in enumerate(items, 1) if name(item) == last), 0)
        if not begin:
            raise Problem("not-found", "what this cursor names is gone; begin at the first page")
    end = begin + page.limit
    return list(items[begin:end]), _closed(name(items[end - 1])) if end < len(items) else None


def _closed(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode("utf-8", "surrogatepass")).decode().rstrip("=")


def _opened(cursor: str) -> str:
    try:
        found = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return found.decode("utf-8", "surrogatepass")
    except (binascii.Error, ValueError):
        raise Problem("not-found", "this is no cursor; give the one that the page before came with") from None
