"""Connections whose other end takes its time: each may keep a socket of ours only for so long.

The server below us waits for ever for the rest of a request's head, takes a head of any size, trailers of any size
behind a chunked body, and waits for ever for a client that does not read its answer. It also closes a connection while
the client still sends, which takes the answer away again. Bodies have a deadline of their own, see `body.py`.
"""

from asyncio import TimerHandle, Transport
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from leasehold.http.problems import MEDIA_TYPE, Problem
from leasehold.http.settings import ApiSettings

_PER_CHUNK: Final = 16
"""Bytes around a chunk that are not counted: its size in hexadecimal digits and two line ends."""

_MOST_DISCARDED: Final = 64 * 1024 * 1024
"""Bytes of a refused request that are read, so that its sender gets to read the answer."""


class _Way:
    """The transport as uvicorn sees it: one that is closed while the client still sends is closed in two steps."""

    def __init__(self, transport: Transport, protocol: "PatientProtocol") -> None:
        self._protocol = protocol
        self.write = transport.write
        self.abort = transport.abort
        self.get_extra_info = transport.get_extra_info
        self.set_protocol = transport.set_protocol
        self._transport = transport

    def close(self) -> None:
        """No more is written; what still comes is read for a while, and thrown away."""
        self._protocol.linger(self._transport)

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._protocol.lingering or self._transport.is_closing()


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with bounds on the patience it has."""

    head_seconds: float
    head_bytes: int
    send_seconds: float
    linger_seconds: float

    lingering = False
    """The answer was given, the rest of the request is thrown away."""

    _head_timer: TimerHandle | None = None
    _send_timer: TimerHandle | None = None
    _in_head = True
    _in_body = False
    _head_size = 0
    _hosts = 0
    _around = 0
    _allowed_around = 0
    _discarded = 0
    _refused = False
    _over = False

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """A client is there."""
        super().connection_made(transport)
        way: Any = _Way(transport, self)
        self.transport = way
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._over = True
        for timer in (self._head_timer, self._send_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """It has sent something."""
        if self._is_deaf:
            self._discarded += len(data)
            if self._discarded > _MOST_DISCARDED:
                self.transport.abort()
            return
        if self._in_body:
            self._around += len(data)
        else:
            self._head_size += len(data)
            # A body may be behind the head in what has come, so only what lies before is counted against it.
            if self._head_size > self.head_bytes and self._head_size - len(data) + _head_end(data) > self.head_bytes:
                self._refuse(Problem("head-too-large", f"the limit is {self.head_bytes:,} bytes"))
                return
        super().data_received(data)
        if self._refused:
            return
        if self._in_body and self._around > self.head_bytes + self._allowed_around:
            self._refuse(Problem("head-too-large", f"what is around the body has {self.head_bytes:,} bytes"))
            return
        # Nothing of ours is under way and yet bytes come: the next head, or something that never becomes one.
        if self._in_head or self.cycle.response_complete:
            self._expect_head()

    @property
    def _is_deaf(self) -> bool:
        """Whether what still comes is thrown away."""
        return self.lingering or self._refused

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_head = True
        self._hosts = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One line of the head. Behind a body there may be more of them, which mean nothing to us."""
        if self._in_head:
            name = name.lower()
            if name == b"host":
                self._hosts += 1
            elif name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Its head is whole."""
        if self._is_deaf:
            return
        self._in_head = False
        self._in_body = True
        self._head_size = self._around = self._allowed_around = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        if self._hosts > 1:
            self._refuse(Problem("malformed-http", "there are two Host headers"))
            return
        if self.parser.get_method() == b"CONNECT":
            self._refuse(Problem("method-not-allowed", "this is no proxy"))
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of its body."""
        self._allowed_around += len(body)
        if not self._is_deaf:
            super().on_body(body)

    def on_chunk_header(self) -> None:
        """A chunk of its body begins."""
        self._allowed_around += _PER_CHUNK

    def on_message_complete(self) -> None:
        """Its body is whole."""
        if self._refused:
            return
        self._in_body = False
        if not self.lingering:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is written; if the connection closes now, that must not take for ever either."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._expect_reading()

    def linger(self, transport: Transport) -> None:
        """Close, but not while the client still sends: it would see that before it has read the answer."""
        if self._over or self.lingering or not self._in_body or not transport.can_write_eof():
            transport.close()
            return
        self.lingering = True
        self.flow.resume_reading()
        transport.write_eof()
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = self.loop.call_later(self.linger_seconds, transport.close)

    def shutdown(self) -> None:
        """The server ends."""
        if self.lingering:
            self.transport.abort()
        else:
            super().shutdown()

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
        self._refused = True
        cycle: Any = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            self._close_after(cycle)
            return
        # Two answers to one request would be taken for an answer to the next, as would one before those still owed.
        started = cycle is not None and cycle.response_started and (self._in_body or not cycle.response_complete)
        if started or self.pipeline:
            self.transport.abort()
            return
        body = problem.body()
        head = f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[problem.known.status] + head.encode() + body)
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self._in_body = True
        self.transport.close()
        self._expect_reading()

    def _close_after(self, cycle: Any) -> None:
        """What is refused came behind a whole request: that one gets its answer, what came behind gets none."""
        cycle.keep_alive = False
        self._in_body = True  # what still comes is thrown away, see `linger`
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def patient(settings: ApiSettings) -> type[PatientProtocol]:
    """The protocol of a server with these settings; uvicorn makes one for each connection and knows none of them."""
    names = ("head_seconds", "head_bytes", "send_seconds", "linger_seconds")
    return type("Patient", (PatientProtocol,), {name: getattr(settings, name) for name in names})


def _head_end(data: bytes) -> int:
    end = data.find(b"\r\n\r\n")
    return len(data) if end < 0 else end
