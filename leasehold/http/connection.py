"""The protocol of a connection, with limits that uvicorn does not have.

uvicorn waits without a limit for the rest of a request's head and for a client that does not read its response, and
accepts heads and trailers of any size. It also closes a connection while the client still sends, and a client that sees
this does not read the response. Bodies have a deadline of their own, see `body.py`.

What this uses of uvicorn is undocumented: `tests/http/test_uvicorn.py` lists it, pyproject.toml bounds the version.
"""

from asyncio import TimerHandle, Transport
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from leasehold.http.problems import MEDIA_TYPE, Problem
from leasehold.http.settings import ApiSettings


class _ClosingTransport:
    """Stands for the transport: to close it while the client still sends takes two steps."""

    def __init__(self, transport: Transport, protocol: "PatientProtocol") -> None:
        self._protocol = protocol
        self.write = transport.write
        self.abort = transport.abort
        self.get_extra_info = transport.get_extra_info
        self.set_protocol = transport.set_protocol
        self._transport = transport

    def close(self) -> None:
        """Write no more; read and discard what still arrives for a while."""
        self._protocol.linger(self._transport)

    def is_closing(self) -> bool:
        """Return whether it is closed, or about to be."""
        return self._protocol.lingering or self._transport.is_closing()


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's protocol with deadlines and limits."""

    head_seconds: float
    head_bytes: int
    send_seconds: float
    linger_seconds: float

    lingering = False  # the response was sent, and the rest of the request is discarded

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
    _ended = False

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Begin to wait for the head of the first request."""
        super().connection_made(transport)
        way: Any = _ClosingTransport(transport, self)
        self.transport = way
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        self._over = True
        for timer in (self._head_timer, self._send_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes, and pass them to the parser unless a limit is exceeded."""
        if self._discards:
            self._discarded += len(data)
            if self._discarded > 64 * 1024 * 1024:  # enough for a sender to read the response
                self.transport.abort()
            return
        if self._in_body:
            self._around += len(data)
        else:
            self._head_size += len(data)
            # A body may be behind the head in what has come, so only what lies before is counted against it.
            before = self._head_size - len(data)
            if self._head_size > self.head_bytes and before + len(data.partition(b"\r\n\r\n")[0]) > self.head_bytes:
                self._refuse(Problem("head-too-large", f"the limit is {self.head_bytes:,} bytes"))
                return
        super().data_received(data)
        if self._refused:
            return
        if self._in_body and self._around > self.head_bytes + self._allowed_around:
            self._refuse(Problem("head-too-large", f"what is around the body has {self.head_bytes:,} bytes"))
            return
        # No request is being answered and yet bytes arrive: the next head, or bytes that never become one.
        if self._in_head or self.cycle.response_complete:
            self._expect_head()

    @property
    def _discards(self) -> bool:
        """Whether what still arrives is discarded."""
        return self.lingering or self._refused

    def on_message_begin(self) -> None:
        """Expect headers from now on."""
        self._in_head = True
        self._hosts = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header. Trailers behind a body are ignored."""
        if self._in_head:
            name = name.lower()
            if name == b"host":
                self._hosts += 1
            elif name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Start the request, unless its head is refused."""
        if self._discards:
            return
        self._in_head = False
        self._in_body = True
        self._head_size = self._around = self._allowed_around = 0
        self._stop_head_timer()
        if self._hosts > 1:
            self._refuse(Problem("malformed-http", "there are two Host headers"))
            return
        if self.parser.get_method() == b"CONNECT":
            self._refuse(Problem("method-not-allowed", "this is no proxy"))
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count and pass on a part of the body."""
        self._allowed_around += len(body)
        if not self._discards:
            super().on_body(body)

    def on_chunk_header(self) -> None:
        """Allow for the bytes around a chunk: its size in hexadecimal digits and two line ends."""
        self._allowed_around += 16

    def on_message_complete(self) -> None:
        """End the body."""
        if self._refused:
            return
        self._in_body = False
        if not self.lingering:
            super().on_message_complete()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return whether the connection stays: a client that sends no more may still read what it is owed."""
        cycle: Any = self.cycle  # None before the first request
        if self._ended:  # reading was resumed
            return True
        if self.lingering or cycle is None or cycle.response_complete or cycle.chunked_encoding:  # a stream has no end
            return False
        if cycle.more_body:  # the last request is not whole
            if not self.pipeline:
                return False
            self.pipeline.popleft()
        self._ended = True
        self._in_body = False
        self._stop_head_timer()
        return True

    def on_response_complete(self) -> None:
        """Limit the time that closing takes, if the connection closes now."""
        if self._ended and not self.pipeline:
            self.transport.close()
        super().on_response_complete()
        if self.transport.is_closing():
            self._expect_reading()

    def linger(self, transport: Transport) -> None:
        """Close, but not while the client still sends: it would see that before it has read the response."""
        if self._over or self.lingering or not self._in_body or not transport.can_write_eof():
            transport.close()
            return
        self.lingering = True
        self.flow.resume_reading()
        transport.write_eof()
        self._stop_head_timer()
        self._head_timer = self.loop.call_later(self.linger_seconds, transport.close)

    def shutdown(self) -> None:
        """Close at the end of the server."""
        if self.lingering:
            self.transport.abort()
        else:
            super().shutdown()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        super().timeout_keep_alive_handler()
        self._expect_reading()

    def pause_writing(self) -> None:
        """Limit the time for which the buffers may be full."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        """Stop the timer: the buffers have room again."""
        super().resume_writing()
        if self._send_timer is not None and not self.transport.is_closing():
            self._send_timer.cancel()
            self._send_timer = None

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self.transport.abort)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _expect_reading(self) -> None:
        if self._send_timer is None:
            self._send_timer = self.loop.call_later(self.send_seconds, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP."""
        self._refuse(Problem("malformed-http", msg))

    def _refuse(self, problem: Problem) -> None:
        self._refused = True
        cycle: Any = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            cycle.keep_alive = False  # the whole request before this one is answered first
            self._in_body = True  # what still arrives is discarded, see `linger`
            self._stop_head_timer()
            return
        # A second response, or one before those still owed, would be taken for the response to another request.
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


def patient(settings: ApiSettings) -> type[PatientProtocol]:
    """Return the protocol class of a server with these settings: uvicorn makes one instance for each connection."""
    names = ("head_seconds", "head_bytes", "send_seconds", "linger_seconds")
    return type("Patient", (PatientProtocol,), {name: getattr(settings, name) for name in names})
