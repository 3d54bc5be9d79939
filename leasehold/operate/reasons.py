"""What explain's reasons, the states and the reasons of dead jobs mean, in words."""

from typing import Final

REASONS: Final = {
    "not_accepted": "Not accepted yet",
    "locked": "A session keeps its row locked",
    "paused": "Its queue is paused",
    "run_at": "Not due yet",
    "backoff": "Waiting to be tried again",
    "exclusive_key": "Another job has its exclusive key",
    "limit": "A limit is reached",
    "no_worker_for_kind": "No live worker knows its kind",
    "no_worker_for_queue": "No live worker serves its queue",
    "running": "It is running",
    "lease_expired": "Its lease has expired, and no sweep has returned it yet",
    "set_aside": "Its row cannot be used, and it was set aside",
    "finished": "It has finished",
}
"""Every reason that `explain` returns."""

DEAD: Final = {
    "cancelled": "it was cancelled",
    "exhausted": "it failed max_attempts times",
    "fatal": "the task said that trying again is of no use",
    "lease_expired": "its lease expired, and that was its last allowed failure",
    "set_aside": "its row cannot be used, and it was set aside",
}
"""Why a job is dead."""

MEANINGS: Final = {
    "created": "waits for its time",
    "queued": "can run now",
    "parked": "waits for its exclusive key or its limit",
    "running": "runs under a lease",
    "retry": "failed, will be tried again",
    "success": "done",
    "dead": "gave up",
    "cancelled": "was cancelled",
}
"""The states, and two that only people distinguish: parked and cancelled."""
