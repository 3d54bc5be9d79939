"""What a worker and the processes of its tasks say to each other: JSON objects in frames, never pickle.

Every object has a `type`. To the process: `setup` once, then one `job` after the other, and `stop`. From it, each
with the number of the `call` that it belongs to: `started`, any number of `progress` and `log`, and one `outcome`;
or `broken`, when the task cannot be found.
"""

import json
import struct
from collections.abc import Mapping
from typing import Any, Final

from leasehold.outcome import Cancelled, Error, Failed, Outcome, Snoozed, Success

_FRAME: Final = struct.Struct("!4sI")
_MARK: Final = b"LHP1"
"""Begins every frame. What a task writes to the socket by mistake is found out at once, not taken for a length."""

HEADER: Final = _FRAME.size
LARGEST: Final = 16 * 1024 * 1024
"""Bytes of one message. Payload, result and error are bounded far below it, escaped as they may be."""


class Garbage(Exception):
    """What came is no message."""


def pack(message: Mapping[str, Any]) -> bytes:
    """The message as one frame. ASCII only, so that no text is too odd to be sent."""
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    if len(body) > LARGEST:
        raise ValueError(f"a message of {len(body):,} bytes is longer than {LARGEST:,}")
    return _FRAME.pack(_MARK, len(body)) + body


def length_of(header: bytes) -> int:
    """How many bytes follow the header of a frame."""
    mark, length = _FRAME.unpack(header)
    if mark != _MARK or length > LARGEST:
        raise Garbage(f"no frame begins with {header!r}")
    return int(length)


def unpack(body: bytes) -> dict[str, Any]:
    """The message in a frame."""
    try:
        message = json.loads(body)
    except ValueError as error:
        raise Garbage(f"not JSON: {error}") from None
    if not isinstance(message, dict):
        raise Garbage("not an object")
    return message


def from_outcome(outcome: Outcome) -> dict[str, Any]:
    """The outcome as fields of a message. A process never gives its job back, nor knows that it lost it."""
    match outcome:
        case Success(result):
            return {"outcome": "success", "result": result}
        case Failed(error=error, retry_after=after, fatal=fatal):
            told = {"type": error.type, "message": error.message, "traceback": error.traceback}
            return {"outcome": "failed", "error": told, "retry_after": after, "fatal": fatal}
        case Snoozed(after):
            return {"outcome": "snoozed", "after": after}
        case Cancelled(reason):
            return {"outcome": "cancelled", "reason": reason}
    raise TypeError(f"{outcome!r} is no outcome of a process")


def to_outcome(message: Mapping[str, Any]) -> Outcome:
    """The outcome in a message's fields."""
    try:
        match message:
            case {"outcome": "success", "result": str() | None as result}:
                return Success(result)
            case {
                "outcome": "failed",
                "error": {"type": str(name), "message": str(text), "traceback": str(trace)},
                "retry_after": int() | float() | None as after,
                "fatal": bool(fatal),
            }:
                error = Error(type=name, message=text, traceback=trace)
                return Failed(error=error, retry_after=after, fatal=fatal)
            case {"outcome": "snoozed", "after": int() | float() as after}:
                return Snoozed(after)
            case {"outcome": "cancelled", "reason": str(reason)}:
                return Cancelled(reason)
    except ValueError as error:
        raise Garbage(str(error)) from None
    raise Garbage(f"no outcome: {str(message)[:200]}")
