"""The model test can fail: each of these slips, put into a function on purpose, is found.

The histories are those of test_model.py, where without a slip none of them fails.
"""

import psycopg
import pytest
from hypothesis.errors import FlakyFailure

from tests.model.database import database_under_test
from tests.model.explore import explore
from tests.model.machine import Divergence

SLIPS = {
    "complete forgets the attempt": ("succeed", [("owns(j, worker, t.attempt,", "owns(j, worker, j.attempt,")]),
    "complete forgets the claim_id": ("succeed", [("t.attempt, t.claim_id, at)", "t.attempt, null, at)")]),
    "complete forgets the owner": ("succeed", [("owns(j, worker,", "owns(j, j.lease_owner,")]),
    "heartbeat renews expired leases": ("renew_v1", [("t.claim_id, at)", "t.claim_id, '-infinity')")]),
    "complete takes what has expired": ("succeed", [("t.claim_id, at)", "t.claim_id, '-infinity')")]),
    "fail takes what has expired": ("fail_many_v1", [("f.claim_id, at)", "f.claim_id, '-infinity')")]),
    "release takes what has expired": ("release_v1", [("t.claim_id, at)", "t.claim_id, '-infinity')")]),
    "log lines are taken after the lease": ("add_logs_v1", [("t.claim_id, at)", "t.claim_id, '-infinity')")]),
    "sweep counts no failure": ("expire", [("retry_count = j.retry_count + 1,", "")]),
    "claim ignores run_at": ("lock_in_lane", [("j.run_at <= lock_in_lane.at and", "")]),
    "claim of several lanes ignores run_at": ("lock_in_lanes", [("j.run_at <= lock_in_lanes.at and", "")]),
    "claim ignores the priority": ("lock_in_lane", [("order by -j.priority, j.id", "order by j.id")]),
    "claim forgets its claim_id": ("note_claim", [("set claim_id = token, seen_at", "set seen_at")]),
    "retry keeps the failures": ("retry_v1", [("retry_count = 0,", "")]),
    "exclusive keys are not settled": (
        "lock_runnable",
        [
            (
                "won := settle_exclusive(locked.ids, at, taken)",
                "won := locked.ids",
            )
        ],
    ),
    "no job is put back when a key is free": ("unpark", [("parked = false from best", "parked = true from best")]),
    "promote ignores the missing acceptance": ("promote_v1", [("and j.accepted ", "")]),
    "a snooze counts as a failure": (
        "fail_many_v1",
        [("(r.outcome = 'failed')::int", "(r.outcome <> 'cancelled')::int")],
    ),
    "release leaves no trace of the attempt": (
        "release_v1",
        [("r.claimed_at, at from released r", "r.claimed_at, at from released r where false")],
    ),
    "cancel leaves no trace of the attempt": ("end_job", [("if ran then", "if false then")]),
}


def changed(dsn: str, function: str, replacements: list[tuple[str, str]]) -> str:
    """The function's definition with the slip in it."""
    with psycopg.connect(dsn) as connection:
        query = "select pg_get_functiondef(oid) from pg_proc where proname = %s"
        ((text,),) = connection.execute(query, [function]).fetchall()
    for right, wrong in replacements:
        assert right in text, f"{function} has changed: {right!r} is not in it"
        text = text.replace(right, wrong, 1)
    return text


@pytest.mark.parametrize("slip", SLIPS)
def test_the_model_finds_the_slip(dsn: str, slip: str) -> None:
    with database_under_test(dsn, changed(dsn, *SLIPS[slip])) as database:
        # Backoffs are chance: that a replay ends otherwise takes nothing from what was found.
        with pytest.raises((Divergence, FlakyFailure)):
            explore(database)
        print(f"{slip}: found after {database.calls} calls")
