"""Laws of intents: what was acknowledged is there and ends, one job a key, nothing out of nothing, nothing gone."""

from collections import defaultdict
from collections.abc import Iterator

from faults.checker.history import OVER, History
from faults.checker.violation import Violation


def acknowledged_jobs_end(history: History) -> Iterator[Violation]:
    """Every job whose intent was acknowledged exists, and has ended once faults had."""
    for call in history.asked("enqueue"):
        if call.outcome != "ok" or call.answer is None:
            continue
        job = call.answer["job"]
        row = history.jobs.get(job)
        if row is None:
            yield Violation("acknowledged_jobs_end", job, f"acknowledged to {call.asked['process']}, and lost")
        elif history.settled_at is not None and row["state"] not in OVER:
            yield Violation("acknowledged_jobs_end", job, f"acknowledged, and still {row['state']} at the end")


def no_phantoms(history: History) -> Iterator[Violation]:
    """Every job comes from an intent that a client sent, or from a schedule, and from none that was refused."""
    sent = [call for call in history.asked("enqueue") if call.outcome != "fail"]
    keys = {call.asked["key"] for call in sent if call.asked.get("key") is not None}
    ids = {call.asked["job"] for call in sent if call.asked.get("job") is not None}
    ids |= {call.answer["job"] for call in sent if call.answer and call.answer.get("job")}
    fired = {job for call in history.asked("fire") if call.answer for _, job in call.answer.get("jobs") or ()}
    schedules = tuple(f"schedule:{key}:" for key in {*history.schedules, *history.expected.get("schedules", {})})
    for job, row in history.jobs.items():
        key = row["idempotency_key"]
        by_schedule = key is not None and key.startswith(schedules) if schedules else False
        if job not in ids and job not in fired and key not in keys and not by_schedule:
            yield Violation("no_phantoms", job, f"of kind {row['kind']}, key {key}: no client asked for it")


def one_job_a_key(history: History) -> Iterator[Violation]:
    """One job for each idempotency key, and every client that used the key got its id."""
    found: dict[str, set[str]] = defaultdict(set)
    for job, row in history.jobs.items():
        found[row["idempotency_key"]].add(job)
    for job, events in history.by_job.items():
        found[events[0].key or ""].add(job)
    for call in history.asked("enqueue"):
        if call.outcome == "ok" and call.answer is not None and call.asked.get("key") is not None:
            found[call.asked["key"]].add(call.answer["job"])
    for key, jobs in found.items():
        if key and len(jobs) > 1:
            yield Violation("one_job_a_key", key, f"stands for {len(jobs)} jobs: {', '.join(sorted(jobs)[:3])}")


def nothing_appears_or_vanishes(history: History) -> Iterator[Violation]:
    """What was recorded is what is left, in the state that its last transition led to."""
    for job, events in history.by_job.items():
        last = events[-1]
        row = history.jobs.get(job)
        if row is None:
            yield Violation("nothing_appears_or_vanishes", job, f"{last.after} when last heard of; its row is gone")
        elif (row["state"], row["attempt"], row["retry_count"]) != (last.after, last.attempt, last.failures):
            found = f"{row['state']}, attempt {row['attempt']}, {row['retry_count']} failures"
            left = f"{last.after}, attempt {last.attempt}, {last.failures} failures"
            yield Violation("nothing_appears_or_vanishes", job, f"is {found}; its history ends {left}")
    for job in history.jobs.keys() - history.by_job.keys():
        yield Violation("nothing_appears_or_vanishes", job, "is there and has no history")


def everything_ends(history: History) -> Iterator[Violation]:
    """Once faults have ended every accepted job ends, within the time that was promised."""
    if history.settled_at is None:
        return
    within = history.expected.get("ends_within")
    for job, row in history.jobs.items():
        if row["state"] not in OVER:
            if row["accepted"]:
                yield Violation("everything_ends", job, f"still {row['state']}, attempt {row['attempt']}")
        elif within is not None and row["finished_at"] > history.settled_at + within:
            late = row["finished_at"] - history.settled_at
            yield Violation("everything_ends", job, f"ended {late:.1f} s after the faults, {within} s were promised")
