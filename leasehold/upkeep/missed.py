"""What becomes of a schedule's due times, those at which nobody was there among them. Pure: no clock, no database."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from leasehold.db.store import ClaimedSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to fire now."""

    due: Sequence[datetime]
    """The due times that get a job each."""

    next_run_at: datetime | None
    """The first due time after the moment of judgement."""

    missed: int
    """How many due times are passed over."""


def plan(claim: ClaimedSchedule) -> Plan:
    """Find out what is due, as of the moment when the schedule was first claimed.

    `skip`: the latest due time, unless it is later than the grace period allows. `once`: the latest, however late.
    `all`: each of them, of very many the latest.
    """
    rule, at = claim.rule, claim.judged_at
    first = claim.next_run_at or rule.after(claim.due_after)
    if first is None or first > at:
        return Plan(due=(), next_run_at=first, missed=0)
    runs = rule.runs(first, at, claim.max_missed if claim.missed == "all" else 1)
    due: Sequence[datetime] = runs.latest
    if claim.missed == "skip" and at - due[-1] > claim.grace:
        due = ()
    return Plan(due=due, next_run_at=runs.next, missed=runs.count - len(due))
