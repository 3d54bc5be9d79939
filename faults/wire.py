"""What goes over a connection to PostgreSQL, as far as one must know to cut it at a given place.

A *round* is what a client sends up to a Sync (or a simple Query), and its answer ends with ReadyForQuery: whatever was
asked is then done and, outside a transaction, committed.
"""

import re
import struct
from dataclasses import dataclass, field
from typing import Final

READY: Final = b"Z"
_FUNCTION: Final = re.compile(rb"\b([a-z_]+)_v\d+\s*\(")


@dataclass(slots=True)
class Round:
    """One question: which of our functions it calls, if any, and its bytes."""

    data: bytes = b""
    functions: set[str] = field(default_factory=set)
    executes: bool = False
    """Whether it runs something; to have a statement prepared does not."""


class Questions:
    """Divides what a client sends into rounds."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._started = False
        self._statements: dict[bytes, set[str]] = {}
        self._round = Round()

    def feed(self, data: bytes) -> tuple[bytes, list[Round]]:
        """Gives what belongs to the beginning of the connection, to be passed on at once, and the rounds now whole."""
        self._buffer += data
        greeting = b""
        rounds: list[Round] = []
        while True:
            if not self._started:
                packet = self._take(0)
                if packet is None:
                    return greeting, rounds
                greeting += packet
                # Requests for encryption come before the one that starts the session: its code is 3.0 or 3.2.
                self._started = struct.unpack("!H", packet[4:6])[0] == 3
                continue
            packet = self._take(1)
            if packet is None:
                return greeting, rounds
            if packet[:1] == b"p":  # an answer to a request for a password
                greeting += packet
            elif self._add(packet):
                rounds.append(self._round)
                self._round = Round()

    def _take(self, prefix: int) -> bytes | None:
        if len(self._buffer) < prefix + 4:
            return None
        (length,) = struct.unpack_from("!I", self._buffer, prefix)
        if len(self._buffer) < prefix + length:
            return None
        packet = bytes(self._buffer[: prefix + length])
        del self._buffer[: prefix + length]
        return packet

    def _add(self, packet: bytes) -> bool:
        """Take one message in; whether it ends the round."""
        current, kind, body = self._round, packet[:1], packet[5:]
        current.data += packet
        if kind == b"Q":
            current.functions |= _called(body)
            current.executes = True
        elif kind == b"P":
            name, _, rest = body.partition(b"\0")
            self._statements[name] = _called(rest.partition(b"\0")[0])
        elif kind == b"B":
            _portal, _, rest = body.partition(b"\0")
            current.functions |= self._statements.get(rest.partition(b"\0")[0], set())
        elif kind == b"E":
            current.executes = True
        # Terminate and Flush are passed on as they come; nothing else may wait for them.
        return kind in {b"Q", b"S", b"X", b"H"}


class Answers:
    """Divides what the server sends into what belongs to the beginning, and one answer for each round."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._answer = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The answers now whole; the first is the end of the beginning."""
        self._buffer += data
        whole = []
        while len(self._buffer) >= 5:
            length = struct.unpack_from("!I", self._buffer, 1)[0] + 1
            if len(self._buffer) < length:
                break
            packet = bytes(self._buffer[:length])
            del self._buffer[:length]
            self._answer += packet
            if packet[:1] == READY:
                whole.append(self._answer)
                self._answer = b""
        return whole

    def rest(self) -> bytes:
        """What has come of an answer that is not whole: before the first ReadyForQuery, and notifications."""
        found, self._answer = self._answer, b""
        return found


def _called(text: bytes) -> set[str]:
    return {name.decode() for name in _FUNCTION.findall(text)}
