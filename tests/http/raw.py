"""HTTP by hand: requests that no client library would send, and the answers to them."""

import json
import re
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_CHUNK = re.compile(rb"([0-9a-fA-F]+)[^\r\n]*\r\n")


@dataclass(frozen=True)
class RawAnswer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip()

    def json(self) -> Any:
        return json.loads(self.body)


def request(
    method: bytes = b"POST",
    target: bytes = b"/jobs",
    body: bytes = b"",
    *,
    headers: Iterable[tuple[bytes, bytes]] = (),
    content_type: bytes | None = b"application/json",
    length: bytes | None = b"",
    token: str | None = None,
) -> bytes:
    """A request as it goes over the wire; `length` None leaves the header out, empty means the true one."""
    lines = [method + b" " + target + b" HTTP/1.1", b"Host: 127.0.0.1"]
    if content_type is not None:
        lines.append(b"Content-Type: " + content_type)
    if length is not None:
        lines.append(b"Content-Length: " + (length or str(len(body)).encode()))
    if token is not None:
        lines.append(b"Authorization: Bearer " + token.encode())
    lines += [name + b": " + value for name, value in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def exchange(port: int, data: bytes, *, timeout: float = 30.0, method: bytes = b"") -> RawAnswer | None:
    """Send it over a connection of its own; None if the server closed without an answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as peer:
        # The server may answer and close before it has read everything.
        with suppress(ConnectionError):
            peer.sendall(data)
        return read_answer(peer, timeout, head_only=(method or data.split(b" ", 1)[0]) == b"HEAD")


def read_answer(peer: socket.socket, timeout: float, *, head_only: bool = False) -> RawAnswer | None:
    """The next final answer of the connection; TimeoutError when it does not come."""
    deadline = time.monotonic() + timeout
    got = b""
    while True:
        answer = parse(got, closed=False, head_only=head_only)
        if answer is not None:
            return answer
        peer.settimeout(max(deadline - time.monotonic(), 0.01))
        try:
            part = peer.recv(65536)
        except ConnectionError:
            part = b""
        if not part:
            return parse(got, closed=True, head_only=head_only)
        got += part


def parse(got: bytes, *, closed: bool, head_only: bool = False) -> RawAnswer | None:
    """The first final answer in what was received, once it is whole."""
    head, found, rest = got.partition(b"\r\n\r\n")
    if not found:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    status = int(first.split(" ")[1])
    if status < 200:
        return parse(rest, closed=closed, head_only=head_only)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if head_only or status in {204, 304}:
        return RawAnswer(status, headers, b"")
    if headers.get("transfer-encoding") == "chunked":
        body = _dechunk(rest)
    elif "content-length" in headers:
        body = rest[: int(headers["content-length"])] if len(rest) >= int(headers["content-length"]) else None
    else:
        body = rest if closed else None
    if body is None:
        return RawAnswer(status, headers, rest) if closed else None
    return RawAnswer(status, headers, body)


def _dechunk(data: bytes) -> bytes | None:
    body, at = b"", 0
    while (size := _CHUNK.match(data, at)) is not None:
        length = int(size[1], 16)
        if length == 0:
            return body
        if len(data) < size.end() + length + 2:
            return None
        body += data[size.end() : size.end() + length]
        at = size.end() + length + 2
    return None
