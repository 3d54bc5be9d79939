"""Notifies every open page when to reload: one query for all of them, none while no page is open."""

import contextlib
import json
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Final

from starlette.responses import Response

from leasehold._aio import within
from leasehold.errors import LeaseholdError
from leasehold.http.jobs import event_stream
from leasehold.http.problems import Problem
from leasehold.web.visit import MOMENT, Visit
from leasehold.web.words import iso

INTERVAL: Final = 2.0
"""Seconds between two events."""

_open: Final[set[object]] = set()
"""One object for each page that this process keeps informed."""


async def stream(visit: Visit) -> Response:
    """Return server-sent events: one every two seconds, saying whether the database answers."""
    if len(_open) >= 1000:
        raise Problem("overloaded", f"{len(_open):,} pages are kept informed already", retry_after=10)
    return event_stream(_events(visit))


async def _events(visit: Visit) -> AsyncGenerator[bytes, None]:
    """Yield events until the page is closed, its token is revoked, or this server stops."""
    closing, page = visit.parts.watcher.closing, object()
    _open.add(page)
    try:
        yield b"retry: 2000\n"
        while not closing.is_set():
            state = await visit.cache.get("live", MOMENT, lambda: _query(visit))
            yield b"data: " + json.dumps({"at": iso(datetime.now(UTC)), "database": state}).encode() + b"\n\n"
            # At the same moments for all pages, so that they share what they query.
            await within(INTERVAL - time.monotonic() % INTERVAL, closing)
            with contextlib.suppress(LeaseholdError):  # the database is away, which is what the event says
                await visit.parts.gate.check(visit.caller)
    except Problem:
        return
    finally:
        _open.discard(page)


async def _query(visit: Visit) -> str:
    try:
        await visit.parts.database.arun(visit.parts.database.store.counts(1))
    except LeaseholdError:
        return "away"
    return "here"
