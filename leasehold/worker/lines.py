"""What a worker says about its jobs and itself: a line for each thing that happened, with the same facts as fields."""

import logging
from collections.abc import Iterable
from typing import Any

from leasehold.db.store import ClaimedJob
from leasehold.outcome import Cancelled, Failed, Outcome, Snoozed
from leasehold.texts import many_lines, one_line

logger = logging.getLogger("leasehold.worker")

_LONGEST = 500
"""Characters of an error's message in a line."""


def reported(worker: str, job: ClaimedJob, outcome: Outcome, state: str) -> None:
    """An attempt did not succeed, and the database has taken that down; `state` is what the job is in now."""
    match outcome:
        case Failed():
            _failed(worker, job, outcome, state)
        case Cancelled(reason):
            logger.info(
                "%s %s: cancelled by its task in attempt %d (queue %s, worker %s): %s", _clean(job.kind), job.id,
                job.attempt, _clean(job.queue), _clean(worker), _clean(reason),
                extra=_fields(worker, job, reason=reason),
            )  # fmt: skip
        case Snoozed(after):
            kind, fields = _clean(job.kind), _fields(worker, job, after=after)
            logger.debug("%s %s: snoozed for %g s", kind, job.id, after, extra=fields)


def _failed(worker: str, job: ClaimedJob, outcome: Failed, state: str) -> None:
    error, failures = outcome.error, job.retry_count + 1
    fields = _fields(
        worker, job, failures=failures, max_attempts=job.max_attempts, error_class=error.type,
        error_message=error.message, retry_after=outcome.retry_after, traceback=error.traceback,
    )  # fmt: skip
    what = f"{_clean(error.type)}: {_clean(error.message)}"
    where = f"failure {failures} of {job.max_attempts}, queue {_clean(job.queue)}, worker {_clean(worker)}"
    kind = _clean(job.kind)
    if state != "dead":
        when = "" if outcome.retry_after is None else f" in {outcome.retry_after:.1f} s"
        logger.warning(
            "%s %s: attempt %d failed (%s): %s; tried again%s", kind, job.id, job.attempt, where, what, when,
            extra=fields,
        )  # fmt: skip
        return
    why = "its last attempt failed" if failures >= job.max_attempts else "its failure is final"
    logger.error(
        "%s %s is dead, %s: attempt %d (%s): %s\n%s", kind, job.id, why, job.attempt, where, what,
        many_lines(error.traceback.rstrip()), extra=fields,
    )  # fmt: skip


def refused(worker: str, job: ClaimedJob) -> None:
    """A report came too late."""
    logger.warning(
        "%s %s: the report of attempt %d was refused, the job is no longer this attempt's (queue %s, worker %s)",
        _clean(job.kind), job.id, job.attempt, _clean(job.queue), _clean(worker), extra=_fields(worker, job),
    )  # fmt: skip


def lost(worker: str, job: ClaimedJob, *, started: bool) -> None:
    """A lease is gone."""
    logger.warning(
        "%s %s: lease lost, attempt %d%s (queue %s, worker %s)", _clean(job.kind), job.id, job.attempt,
        "" if started else ", before it was started", _clean(job.queue), _clean(worker), extra=_fields(worker, job),
    )  # fmt: skip


def cancelled(worker: str, job: ClaimedJob, why: str | None, *, started: bool) -> None:
    """A lease is gone because the job was cancelled."""
    logger.info(
        "%s %s: cancelled, attempt %d%s (queue %s, worker %s)%s", _clean(job.kind), job.id, job.attempt,
        " is stopped" if started else " was not started", _clean(job.queue), _clean(worker),
        f": {_clean(why)}" if why else "", extra=_fields(worker, job, reason=why),
    )  # fmt: skip


def worker_started(worker: str, slots: int, kinds: Iterable[str]) -> None:
    """It takes jobs from now on."""
    logger.info("worker %s started: %d slots, kinds %s", worker, slots, ", ".join(sorted(kinds)))


def worker_drains(worker: str, running: int, grace: float) -> None:
    """It takes no more jobs."""
    logger.info("worker %s drains: %d jobs run, they have %g s", worker, running, grace)


def worker_ended(worker: str, finished: int) -> None:
    """It has stopped in good order."""
    logger.info("worker %s ended: %d jobs run", worker, finished)


def _clean(text: str) -> str:
    return one_line(text, _LONGEST)


def _fields(worker: str, job: ClaimedJob, **more: Any) -> dict[str, dict[str, Any]]:
    known = {"job_id": job.id, "kind": job.kind, "attempt": job.attempt, "queue": job.queue, "worker": worker}
    return {"leasehold": {**known, **more}}
