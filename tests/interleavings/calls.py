"""What the two sessions do: one call each, or a few in a row."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.interleavings.starts import Start


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One statement, a transaction of its own."""

    sql: str
    arguments: dict[str, Any]


Program = tuple[Call, ...]
Maker = Callable[[Start, str], Program]
"""Makes the program of a session whose own worker has this name."""

# A claim's id is the same whenever it is made: the calls of the two sessions differ, repeated ones do not.
CLAIM_IDS: Final = {name: f"00000000-0000-7000-8000-0000000000{n:02}" for n, name in enumerate("abw", start=10)}


def _call(sql: str, **arguments: Any) -> Program:
    return (Call(sql=sql, arguments=arguments),)


_CLAIM: Final = "select id, attempt, claimed_at, lease_seconds from claim(%(worker)s, claim_id => %(claim)s)"
_CLAIM_JOB: Final = "select claim_job(%(id)s, %(worker)s, %(claim)s)"

_SWEEP: Final = "select sweep()"

FRUITLESS: Final = {_CLAIM: "", _CLAIM_JOB: "(b'f',)", _SWEEP: "(b'0',)"}
"""What they answer when there was nothing for them."""


def _claim_as(worker: str) -> Program:
    return _call(_CLAIM, worker=worker, claim=CLAIM_IDS[worker])


def _report(function: str) -> Maker:
    sql = f"select * from {function}('w', %(ids)s::uuid[], '{{1}}')"
    return lambda start, _: _call(sql, ids=[start.reported])


def _operate(function: str) -> Maker:
    return lambda start, _: _call(f"select {function}(%(id)s)", id=start.meant)


def _sweep(start: Start, worker: str) -> Program:
    return _call(_SWEEP)


CALLS: Final[dict[str, Maker]] = {
    "claim": lambda _, worker: _claim_as(worker),
    "claim_job": lambda start, worker: _call(_CLAIM_JOB, id=start.meant, worker=worker, claim=CLAIM_IDS[worker]),
    "heartbeat": _report("heartbeat"),
    "complete": _report("complete"),
    "fail": lambda start, _: _call(
        "select fail('w', %(id)s, 1, '{\"class\": \"E\"}', retry_after => 0)", id=start.reported
    ),
    "release": _report("release"),
    "sweep": _sweep,
    "cancel": _operate("cancel"),
    "retry": _operate("retry"),
    "promote": lambda *_: _call("select promote()"),
    # Leases that were alive expire, wherever the other one has just read the clock.
    "time passes": lambda *_: _call("update hands set now = now + interval '20 seconds'"),
    # The worker that reports comes back: once with the claim whose answer it has not seen, once after it lost the job.
    "claim of w": lambda *_: _claim_as("w"),
    "take over": lambda start, worker: _sweep(start, worker) + _claim_as("w"),
}
