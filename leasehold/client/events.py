"""Server-sent events: read line by line, and continued where the connection broke."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace
from urllib.parse import quote
from uuid import UUID

from leasehold.client.exchange import HttpSession
from leasehold.client.problems import NoAnswer, Reply, Request
from leasehold.client.views import JobView, decode


class Parser:
    """Turns lines into events. Knows the fields that the API uses."""

    def __init__(self) -> None:
        self.last_id: str | None = None
        """Of the last complete event."""
        self._id: str | None = None
        self._data: list[str] = []
        self._name = "message"

    def feed(self, line: str) -> Iterator[tuple[str, str]]:
        """Take a line; yield the event that it ends, as name and data."""
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if self._data:
                self.last_id = self._id
                yield self._name, "\n".join(self._data)
            self._data, self._name = [], "message"
        elif name == "event":
            self._name = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value

    def restart(self) -> None:
        """Forget an event that was cut off."""
        self._data, self._name, self._id = [], "message", self.last_id


async def events(session: HttpSession, job_id: str | UUID) -> AsyncGenerator[JobView, None]:
    """Yield the job's view on each change until it has finished; reconnects by itself."""
    parser = Parser()
    failures, heard = 0, session.clock()
    path = f"/jobs/{quote(str(job_id), safe='')}/events"
    plain = Request(method="GET", path=path, headers=(("Accept", "text/event-stream"),), job_id=str(job_id))
    while True:
        last = () if parser.last_id is None else (("Last-Event-ID", parser.last_id),)
        request = replace(plain, headers=plain.headers + last)
        parser.restart()
        reply: Reply = NoAnswer(error=ConnectionError("the stream of events ended early"), sent=True)
        # Without a line for as long as three keep-alive comments of the server, the connection counts as lost.
        async with aclosing(session.wire.lines(request, 45.0)) as received:
            async for item in received:
                if isinstance(item, str):
                    failures, heard = 0, session.clock()
                    for name, data in parser.feed(item):
                        if name == "status":
                            view = JobView.read(decode(data.encode()))
                            yield view
                            if view.finished:
                                return
                elif isinstance(item, NoAnswer) or item.status != 200:
                    reply = item
        failures += 1
        await session.pause(request, reply, failures, heard, heard + session.timeout)
