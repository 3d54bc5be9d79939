"""A lean load generator: raw keep-alive connections, one request under way on each, nothing but sockets.

    python -m bench.http_load 127.0.0.1 8484 --connections 64 --seconds 5 [--token T]

Sends `POST /jobs` with a new idempotency key each and prints one JSON object: answers per second, latencies,
counts of statuses. It runs as a process of its own, so that it takes no time from the server's.
"""

import argparse
import asyncio
import json
import os
import time
from collections import Counter
from typing import Any

import uvloop

BODY = (
    b'{"jobType":"SEND_EMAIL","payload":{"to":"someone@example.com","subject":"Welcome","n":%d},"idempotencyKey":"%s"}'
)


class Connection(asyncio.Protocol):
    """Sends the next request when the answer to the last is whole."""

    def __init__(self, load: "Load") -> None:
        self._load = load
        self._got = b""
        self._began = 0.0
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        got = self._got + data if self._got else data
        end = got.find(b"\r\n\r\n")
        if end < 0:
            self._got = got
            return
        at = got.find(b"ontent-length: ") if b"ontent-length: " in got else got.find(b"ontent-Length: ")
        length = int(got[at + 15 : got.index(b"\r", at)])
        if len(got) < end + 4 + length:
            self._got = got
            return
        self._got = b""
        self._load.answered(got[9:12], time.perf_counter() - self._began)
        self._send()

    def connection_lost(self, _error: Exception | None) -> None:
        self._load.lost()

    def _send(self) -> None:
        request = self._load.next_request()
        if request is None:
            self._transport.close()
            return
        self._began = time.perf_counter()
        self._transport.write(request)


class Load:
    """One run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._head = b"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        if options.token:
            self._head += b"Authorization: Bearer " + options.token.encode() + b"\r\n"
        self._run = os.urandom(8).hex().encode()
        self._open = options.connections
        self._done = asyncio.Event()
        self._until = 0.0
        self.sent = 0
        self.latencies: list[float] = []
        self.statuses: Counter[str] = Counter()

    async def run(self) -> dict[str, Any]:
        """Connect, send until the time is over, count."""
        loop = asyncio.get_running_loop()
        began = time.perf_counter()
        self._until = began + self._options.seconds
        for _ in range(self._options.connections):
            await loop.create_connection(lambda: Connection(self), self._options.host, self._options.port)
        await self._done.wait()
        seconds = time.perf_counter() - began
        took = sorted(self.latencies)
        return {
            "answers": len(took),
            "seconds": seconds,
            "rate": len(took) / seconds,
            "p50_ms": took[len(took) // 2] * 1e3,
            "p99_ms": took[len(took) * 99 // 100] * 1e3,
            "statuses": dict(self.statuses),
            "cpu_share": time.process_time() / seconds,
        }

    def next_request(self) -> bytes | None:
        """A request that was never sent before, or None when the time is over."""
        if time.perf_counter() >= self._until:
            return None
        self.sent += 1
        body = BODY % (self.sent, b"%s-%d" % (self._run, self.sent))
        return b"%sContent-Length: %d\r\n\r\n%s" % (self._head, len(body), body)

    def answered(self, status: bytes, seconds: float) -> None:
        """Count an answer."""
        self.statuses[status.decode()] += 1
        self.latencies.append(seconds)

    def lost(self) -> None:
        """Count a connection that is closed."""
        self._open -= 1
        if not self._open:
            self._done.set()


def main() -> None:
    """Run once and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--token")
    options = parser.parse_args()

    async def run() -> dict[str, Any]:
        return await Load(options).run()

    print(json.dumps(uvloop.run(run())))


if __name__ == "__main__":
    main()
