"""Connections whose other end takes its time: each may keep a socket of ours only for so long.

The server below us waits for ever for the rest of a request's head, takes a head of any size, and waits for ever
for a client that does not read its answer. Bodies have a deadline of their own, see `body.py`.
"""

from asyncio import TimerHandle, Transport

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from leasehold.http.problems import MEDIA_TYPE, Problem
from leasehold.http.settings import ApiSettings


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with bounds on the patience it has."""

    head_seconds: float
    head_bytes: int
    send_seconds: float

    _head_timer: TimerHandle | None = None
    _send_timer: TimerHandle | None = None
    _in_head = True
    _in_body = False
    _head_size = 0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """A client is there."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        for timer in (self._head_timer, self._send_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """It has sent something."""
        if not self._in_body:
            self._head_size += len(data)
            # A body may be behind the head in what has come, so only what lies before is counted against it.
            if self._head_size > self.head_bytes and self._head_size - len(data) + _head_end(data) > self.head_bytes:
                self._refuse(Problem("head-too-large", f"the limit is {self.head_bytes:,} bytes"))
                return
        super().data_received(data)
        # Nothing of ours is under way and yet bytes come: the next head, or something that never becomes one.
        if self._in_head or self.cycle.response_complete:
            self._expect_head()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its head is whole."""
        self._in_head = False
        self._in_body = True
        self._head_size = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Its body is whole."""
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is written; if the connection closes now, that must not take for ever either."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._expect_reading()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing more was asked for a while."""
        super().timeout_keep_alive_handler()
        self._expect_reading()

    def pause_writing(self) -> None:
        """Our buffers are full."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        """They are not any more."""
        super().resume_writing()
        if self._send_timer is not None and not self.transport.is_closing():
            self._send_timer.cancel()
            self._send_timer = None

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self.transport.abort)

    def _expect_reading(self) -> None:
        if self._send_timer is None:
            self._send_timer = self.loop.call_later(self.send_seconds, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """What has come is not HTTP."""
        self._refuse(Problem("malformed-http", msg))

    def _refuse(self, problem: Problem) -> None:
        body = problem.body()
        head = f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[problem.known.status] + head.encode() + body)
        self.transport.close()
        self._expect_reading()


def patient(settings: ApiSettings) -> type[PatientProtocol]:
    """The protocol of a server with these settings; uvicorn makes one for each connection and knows none of them."""
    names = ("head_seconds", "head_bytes", "send_seconds")
    return type("Patient", (PatientProtocol,), {name: getattr(settings, name) for name in names})


def _head_end(data: bytes) -> int:
    end = data.find(b"\r\n\r\n")
    return len(data) if end < 0 else end
