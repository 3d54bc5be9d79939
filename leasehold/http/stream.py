"""A job's changes as server-sent events."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from leasehold.db.store import Seen
from leasehold.errors import LeaseholdError
from leasehold.http.problems import Problem
from leasehold.http.schemas import etag_of, view_of
from leasehold.http.settings import ApiSettings
from leasehold.http.waiting import Watcher


class EventStream(Response):
    """One stream: an event at once and at each change, comments in between, and an end with the job."""

    def __init__(
        self,
        watcher: Watcher,
        job: Seen,
        settings: ApiSettings,
        *,
        last: str | None,
        final: frozenset[str],
        check: Callable[[], Awaitable[None]],
        change: Callable[[Seen, float], Awaitable[Seen]],
    ) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(media_type="text/event-stream", headers=headers)
        self._watcher = watcher
        self._job = job
        self._settings = settings
        self._last = last
        self._final = final
        self._change = change
        self._check = check
        """Raises a Problem when the caller may no longer see the job."""
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 (an ASGI application)
        """Send events until the job has ended, the client has gone or this server stops."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        speaking = asyncio.create_task(self._speak(send))
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait([speaking, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (speaking, gone):
                task.cancel()
            outcomes = await asyncio.gather(speaking, gone, return_exceptions=True)
        if isinstance(outcomes[0], Exception):
            raise outcomes[0]
        with contextlib.suppress(OSError):
            await send({"type": "http.response.body", "body": b""})

    async def _speak(self, send: Send) -> None:
        job = self._job
        while True:
            view = view_of(job)
            etag = etag_of(view)
            # The id of an event must hold no quotes for everybody to repeat it faithfully.
            if etag.strip('"') != (self._last or "").strip('"'):
                self._last = etag
                await _say(send, b"event: status\nid: " + etag.strip('"').encode() + b"\ndata: " + view + b"\n\n")
            if job.status in self._final:
                return
            changed = await self._next(job, send)
            if changed is None:
                return
            job = changed

    async def _next(self, job: Seen, send: Send) -> Seen | None:
        """The job when it has changed; None: this server stops, and the client shall ask another."""
        while not self._watcher.closing.is_set():
            try:
                changed = await self._change(job, time.monotonic() + self._settings.keepalive_seconds)
                await self._check()
            except LeaseholdError:
                changed = job  # the database is away: keep the stream, it is looked at again
            except Problem:
                return None  # too many wait, or the token was revoked: the client shall ask again, and be told
            if changed != job:
                return changed
            await _say(send, b": still here\n\n")
        return None


async def _say(send: Send, words: bytes) -> None:
    await send({"type": "http.response.body", "body": words, "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
