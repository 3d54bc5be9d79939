"""Tells every open page when to look again: one look at the database for all of them, none while nobody watches."""

import asyncio
import contextlib
import json
import weakref
from datetime import UTC, datetime
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from leasehold.errors import LeaseholdError
from leasehold.http.problems import Problem
from leasehold.http.runtime import Runtime
from leasehold.web.visit import Visit
from leasehold.web.words import iso

INTERVAL: Final = 2.0
"""Seconds between two looks."""

_MOST: Final = 1000
"""Pages that one process keeps informed."""


class Pulse:
    """The one who looks, for one event loop."""

    def __init__(self, parts: Runtime) -> None:
        self._parts = parts
        self._task: asyncio.Task[None] | None = None
        self._beat = asyncio.Condition()
        self.watching = 0
        self.looks = 0
        """How often the database was asked."""
        self.said = b""

    async def next(self) -> bytes:
        """The next thing to say."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        async with self._beat:
            await self._beat.wait()
        return self.said

    async def look(self) -> bytes:
        """What to say now."""
        self.looks += 1
        try:
            await self._parts.database.arun(self._parts.database.store.counts(1))
        except LeaseholdError:
            state = "away"
        else:
            state = "here"
        return b"data: " + json.dumps({"at": iso(datetime.now(UTC)), "database": state}).encode() + b"\n\n"

    async def _run(self) -> None:
        while self.watching and not self._parts.watcher.closing.is_set():
            # Ends early when this server stops, so that nobody is kept waiting.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._parts.watcher.closing.wait(), INTERVAL)
            try:
                self.said = await self.look()
            finally:  # whatever happens, nobody is left waiting: they start another one
                async with self._beat:
                    self._beat.notify_all()


_PULSES: "weakref.WeakKeyDictionary[Runtime, Pulse]" = weakref.WeakKeyDictionary()


def pulse_of(parts: Runtime) -> Pulse:
    """The one of this event loop."""
    found = _PULSES.get(parts)
    if found is None:
        found = _PULSES[parts] = Pulse(parts)
    return found


async def stream(visit: Visit) -> Response:
    """Server-sent events: one every two seconds, saying that the database answers."""
    pulse = pulse_of(visit.parts)
    if pulse.watching >= _MOST:
        raise Problem("overloaded", f"{pulse.watching:,} pages are kept informed already", retry_after=10)
    return _Stream(visit, pulse)


class _Stream(Response):
    """One page's stream."""

    def __init__(self, visit: Visit, pulse: Pulse) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(media_type="text/event-stream", headers=headers)
        del self.headers["content-length"]
        self._visit = visit
        self._pulse = pulse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 (an ASGI application)
        """Speak until the page is closed, its token is revoked, or this server stops."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        self._pulse.watching += 1
        speaking = asyncio.create_task(self._speak(send))
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait([speaking, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._pulse.watching -= 1
            for task in (speaking, gone):
                task.cancel()
            await asyncio.gather(speaking, gone, return_exceptions=True)
        with contextlib.suppress(OSError):
            await send({"type": "http.response.body", "body": b""})

    async def _speak(self, send: Send) -> None:
        parts = self._visit.parts
        said = b"retry: 2000\n" + await self._pulse.look()
        while not parts.watcher.closing.is_set():
            await send({"type": "http.response.body", "body": said, "more_body": True})
            said = await self._pulse.next()
            try:
                await parts.gate.check(self._visit.visitor.caller)
            except Problem:
                return
            except LeaseholdError:
                continue  # the database is away, which is what is being said


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
