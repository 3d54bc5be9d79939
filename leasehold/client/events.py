"""Server-sent events: read line by line, and taken up again where they broke off."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final
from urllib.parse import quote
from uuid import UUID

from leasehold.client.problems import exception
from leasehold.client.retries import Patience, before_next, give_up
from leasehold.client.steps import Answer, Emit, Line, NoAnswer, Open, Pause, Reply, Request, Steps
from leasehold.client.views import JobView, decode

SILENCE: Final = 45.0
"""Seconds without a line after which the connection counts as lost: three keep-alive comments of the server."""


class Parser:
    """Lines become events. Knows the fields that the API uses."""

    def __init__(self) -> None:
        self.last_id: str | None = None
        """Of the last complete event."""
        self._id: str | None = None
        self._data: list[str] = []
        self._name = "message"

    def feed(self, line: str) -> Iterator[tuple[str, str]]:
        """Take a line; give the event, as name and data, that it ends."""
        if line:
            name, _, value = line.partition(":")
            self._take(name, value.removeprefix(" "))
            return
        if self._data:
            self.last_id = self._id
            yield self._name, "\n".join(self._data)
        self._data, self._name = [], "message"

    def restart(self) -> None:
        """Forget an event that was cut off."""
        self._data, self._name, self._id = [], "message", self.last_id

    def _take(self, name: str, value: str) -> None:
        match name:
            case "event":
                self._name = value
            case "data":
                self._data.append(value)
            case "id" if "\0" not in value:
                self._id = value


def events(patience: Patience, job_id: str | UUID) -> Steps[None]:
    """Emit the job's view on each change, the last one being final; reconnects as long as the server is there."""
    parser = Parser()
    failures = 0
    heard = patience.clock()
    request = Request(
        method="GET",
        path=f"/jobs/{quote(str(job_id), safe='')}/events",
        headers=(("Accept", "text/event-stream"),),
        job_id=str(job_id),
    )
    while True:
        reply: Reply = yield Open(_continued(request, parser), SILENCE)
        if isinstance(reply, Answer) and reply.status == 200:
            parser.restart()
            while (line := (yield Line())) is not None:
                failures, heard = 0, patience.clock()
                for name, data in parser.feed(line):
                    if name == "status":
                        view = JobView.read(decode(data.encode()))
                        yield Emit(view)
                        if view.finished:
                            return
            reply = NoAnswer(error=ConnectionError("the stream of events ended early"), sent=True)
        failures += 1
        pause = before_next(request, reply, failures, patience.chance())
        if pause is None and isinstance(reply, Answer):
            raise exception(request, reply)
        if pause is None or patience.clock() + pause >= heard + patience.timeout:
            raise give_up(request, reply, patience.clock() - heard)
        yield Pause(pause)


def _continued(request: Request, parser: Parser) -> Request:
    if parser.last_id is None:
        return request
    return replace(request, headers=(*request.headers, ("Last-Event-ID", parser.last_id)))
