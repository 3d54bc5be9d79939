"""Laws of failures: each is counted, once, and the last one of the budget ends the job."""

from collections import Counter
from collections.abc import Iterator

from faults.checker.history import Event, History
from faults.checker.violation import Violation

FAILURES = ("failed", "lease_expired")


def failures_are_counted_once(history: History) -> Iterator[Violation]:
    """The count of failures goes up by one when an attempt fails, to zero when a person retries, never otherwise."""
    for before, event in history.pairs():
        had = before.failures if before else 0
        allowed = {had}
        if event.ends and event.after != "success":
            allowed = {had, had + 1}
        elif (event.before, event.after) == ("dead", "queued"):
            allowed = {0}
        if event.failures not in allowed:
            what = f"{event.before} -> {event.after}"
            yield Violation("failures_are_counted_once", event.job, f"{what}: {had} failures became {event.failures}")


def the_budget_is_the_end(history: History) -> Iterator[Violation]:
    """A job is dead for its failures with the last one of its budget: not before, and never goes on after it."""
    most = history.expected.get("max_attempts")
    for event in history.events:
        spent = f"{event.failures} failures of {event.budget}"
        if most is not None and event.budget > most:
            yield Violation("the_budget_is_the_end", event.job, f"has a budget of {event.budget}, {most} was the most")
        elif event.failures > event.budget:
            yield Violation("the_budget_is_the_end", event.job, spent)
        elif event.failures >= event.budget and event.after in ("queued", "running", "success"):
            yield Violation("the_budget_is_the_end", event.job, f"goes on as {event.after} after {spent}")
        elif event.after == "dead" and event.reason in ("exhausted", "lease_expired") and event.failures < event.budget:
            yield Violation("the_budget_is_the_end", event.job, f"dead, {event.reason}, after {spent}")


def every_attempt_is_on_record(history: History) -> Iterator[Violation]:
    """Each attempt that did not succeed has one row, which says how it ended and agrees with what was counted."""
    recorded = Counter((row["job_id"], row["attempt"]) for row in history.attempts)
    outcomes = {(row["job_id"], row["attempt"]): row["outcome"] for row in history.attempts}
    for before, event in history.pairs():
        token = (event.job, event.attempt)
        if before is None or not event.ends:
            continue
        if event.after == "success":
            if token in recorded:
                yield Violation(
                    "every_attempt_is_on_record", event.job, f"attempt {event.attempt} is on record as no success"
                )
        elif recorded[token] != 1:
            detail = f"attempt {event.attempt} ended {event.after} and has {recorded[token]} rows"
            yield Violation("every_attempt_is_on_record", event.job, detail)
        else:
            yield from _agrees(before, event, outcomes[token])


def _agrees(before: Event, event: Event, outcome: str) -> Iterator[Violation]:
    counted = event.failures - before.failures
    if counted != (outcome in FAILURES):
        detail = f"attempt {event.attempt} is on record as {outcome}, and {counted} failures were counted"
        yield Violation("every_attempt_is_on_record", event.job, detail)
