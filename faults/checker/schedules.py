"""Laws of schedules: one job for each due time."""

from collections import defaultdict
from collections.abc import Iterator

from faults.checker.history import History
from faults.checker.violation import Violation


def one_fire_a_due_time(history: History) -> Iterator[Violation]:
    """Every scheduler that fired a due time got the same job."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for call in history.asked("fire"):
        if call.answer and call.outcome == "ok":
            for due, job in call.answer.get("jobs") or ():
                if job is not None:
                    found[call.asked["schedule"], str(due)].add(job)
    for (schedule, due), jobs in found.items():
        if len(jobs) > 1:
            yield Violation("one_fire_a_due_time", schedule, f"{len(jobs)} jobs for the due time {due}")


def every_scheduled_job_has_its_due_time(history: History) -> Iterator[Violation]:
    """The jobs of a kind that only a schedule enqueues carry its due times, and are as many as it counted."""
    for schedule, kind in history.expected.get("schedules", {}).items():
        jobs = {job: row["idempotency_key"] for job, row in history.jobs.items() if row["kind"] == kind}
        for job, key in jobs.items():
            if key is None or not key.startswith(f"schedule:{schedule}:"):
                yield Violation("every_scheduled_job_has_its_due_time", schedule, f"job {job} has the key {key}")
        row = history.schedules.get(schedule)
        if row is not None and row["fired"] != len(jobs):
            detail = f"{len(jobs)} jobs, and it counted {row['fired']}"
            yield Violation("every_scheduled_job_has_its_due_time", schedule, detail)
