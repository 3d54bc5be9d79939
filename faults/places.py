"""The names of the places at which `leasehold._failpoints` can kill a process."""

from typing import Final

SUBMISSION: Final = ("before-submit", "after-submit", "after-accept", "before-answer", "half-answer")
"""In the order of a submission: received, recorded as created, accepted, about to be answered, partly answered."""

WORK: Final = (
    "before-claim", "after-claim", "before-heartbeat", "after-heartbeat", "before-complete", "after-complete",
    "before-fail", "after-fail", "before-release", "after-release", "after-schedule-claim", "after-schedule-fire",
)  # fmt: skip
"""In a worker, around the calls that change a job: about to be sent; answered, and nothing else done yet."""
