"""The situations in which two calls meet."""

from dataclasses import dataclass, field
from typing import Any, Final

NOW: Final = "2031-05-17 12:00:00+00"
LIVE: Final = "2031-05-17 12:00:10+00"
OVER: Final = "2031-05-17 11:59:59+00"
BEFORE: Final = "2031-05-17 11:59:00+00"

FIRST: Final = "00000000-0000-7000-8000-000000000001"
SECOND: Final = "00000000-0000-7000-8000-000000000002"
OLD_CLAIM: Final = "00000000-0000-7000-8000-00000000c1a1"

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What is in the database before the two calls."""

    jobs: tuple[Row, ...]
    attempts: tuple[tuple[str, int, str], ...] = ()
    """Of which job, which one, how it ended."""
    limits: tuple[Row, ...] = ()
    reported: str = FIRST
    """The job that worker `w` reports about, always with attempt 1."""
    meant: str = FIRST
    """The job that is cancelled, retried, or claimed by its id."""
    statements: list[str] = field(default_factory=list)


def _job(name: str = FIRST, **columns: Any) -> Row:
    return {
        "id": name,
        "kind": "k",
        "max_attempts": 5,
        "state": "queued",
        "run_at": BEFORE,
        "created_at": BEFORE,
        "updated_at": BEFORE,
        **columns,
    }


def _running(name: str = FIRST, **columns: Any) -> Row:
    lease = {"lease_owner": "w", "lease_expires_at": LIVE, "claim_id": OLD_CLAIM, "claimed_at": BEFORE}
    row = _job(name, state="running", attempt=1, **lease)
    if "exclusive_key" in columns:
        row["is_current"] = True
    return {**row, **columns}


def _dead(**columns: Any) -> Row:
    return _job(state="dead", attempt=1, retry_count=1, reason="fatal", finished_at=BEFORE, **columns)


_LIMIT: Final = {"scope": "kind", "name": "k", "max_running": 1, "updated_at": BEFORE}
_KEY_LIMIT: Final = {"scope": "key", "name": "x", "max_running": 1, "ends_before": "y", "updated_at": BEFORE}
_X: Final = {"exclusive_key": "x"}

STARTS: Final[dict[str, Start]] = {
    "queued": Start(jobs=(_job(),)),
    "two queued": Start(jobs=(_job(), _job(SECOND))),
    "given back": Start(jobs=(_job(attempt=1),), attempts=((FIRST, 1, "released"),)),
    "running": Start(jobs=(_running(),)),
    "running elsewhere": Start(jobs=(_running(attempt=2, lease_owner="v"),), attempts=((FIRST, 1, "lease_expired"),)),
    "running again": Start(jobs=(_running(attempt=2),), attempts=((FIRST, 1, "released"),)),
    "expired": Start(jobs=(_running(lease_expires_at=OVER),)),
    "expired for the last time": Start(jobs=(_running(lease_expires_at=OVER, max_attempts=1),)),
    "retry": Start(jobs=(_job(state="retry", attempt=1, retry_count=1),), attempts=((FIRST, 1, "failed"),)),
    "dead": Start(jobs=(_dead(),), attempts=((FIRST, 1, "failed"),)),
    "dead with a key": Start(jobs=(_dead(**_X), _job(SECOND, **_X)), attempts=((FIRST, 1, "failed"),)),
    "two of a key": Start(jobs=(_job(**_X), _job(SECOND, **_X)), meant=SECOND),
    "behind a key": Start(jobs=(_running(**_X), _job(SECOND, parked=True, **_X)), meant=SECOND),
    "behind a key, not parked": Start(jobs=(_running(**_X), _job(SECOND, **_X)), meant=SECOND),
    "the head of a key": Start(jobs=(_running(**_X), _job(SECOND, parked=True, **_X))),
    "behind an expired key": Start(jobs=(_running(lease_expires_at=OVER, **_X), _job(SECOND, **_X)), meant=SECOND),
    "under a limit": Start(jobs=(_job(), _job(SECOND)), limits=(_LIMIT,), meant=SECOND),
    "behind a limit": Start(jobs=(_running(), _job(SECOND)), limits=(_LIMIT,), meant=SECOND),
    "behind an expired limit": Start(
        jobs=(_running(lease_expires_at=OVER), _job(SECOND)), limits=(_LIMIT,), meant=SECOND
    ),
    "behind a key limit": Start(
        jobs=(_running(exclusive_key="x1"), _job(SECOND, exclusive_key="x2", parked=True, parked_under="x")),
        limits=(_KEY_LIMIT,),
        meant=SECOND,
    ),
    "under a key limit": Start(
        jobs=(_job(exclusive_key="x1"), _job(SECOND, exclusive_key="x2")), limits=(_KEY_LIMIT,), meant=SECOND
    ),
}
