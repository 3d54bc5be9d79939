"""When to send again, and how long to wait before."""

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from leasehold.client.problems import exception, unavailable
from leasehold.client.steps import Answer, NoAnswer, Pause, Reply, Request, Send, Steps

_AWAY: Final = frozenset({502, 503, 504})
_FIRST: Final = 0.1
_LONGEST: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a call may take."""

    timeout: float = 30.0
    """Seconds for one call with all its repetitions."""
    try_timeout: float = 10.0
    """Seconds for one try."""
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    chance: Callable[[], float] = field(default=random.random, repr=False)


def call(patience: Patience, request: Request, *, timeout: float | None = None) -> Steps[Answer]:
    """Send until there is an answer worth having, or the time is over: `timeout`, if given, else the client's."""
    began = patience.clock()
    deadline = began + (patience.timeout if timeout is None else timeout)
    tries = 0
    while True:
        left = max(deadline - patience.clock(), 0.05)
        reply: Reply = yield Send(request, min(patience.try_timeout + request.patience, left))
        tries += 1
        pause = before_next(request, reply, tries, patience.chance())
        if isinstance(reply, Answer) and pause is None:
            if reply.status < 400:
                return reply
            raise exception(request, reply)
        if pause is None or patience.clock() + pause >= deadline:
            raise give_up(request, reply, patience.clock() - began)
        yield Pause(pause)


def before_next(request: Request, reply: Reply, tries: int, chance: float) -> float | None:
    """Seconds to wait before the request is sent again, or None if it must not be."""
    match reply:
        case NoAnswer(sent=sent):
            return backoff(tries, chance) if request.repeatable or not sent else None
        case Answer(status=429):
            # Refused before anything was done, whatever the request.
            return _asked_for(reply) + backoff(tries, chance)
        case Answer(status=status) if status in _AWAY and request.repeatable:
            return _asked_for(reply) + backoff(tries, chance)
    return None


def backoff(tries: int, chance: float) -> float:
    """Full jitter: anywhere up to a bound that doubles, so that many clients do not come back together."""
    return min(_LONGEST, _FIRST * 2.0 ** min(tries - 1, 16)) * chance


def give_up(request: Request, reply: Reply, seconds: float) -> Exception:
    """What to raise after the last try."""
    return unavailable(request, reply, seconds) if isinstance(reply, NoAnswer) else exception(request, reply)


def _asked_for(answer: Answer) -> float:
    """Retry-After, in seconds: a number or a date."""
    value = answer.headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value) if len(value) < 10 else math.inf
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    return max(0.0, (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
