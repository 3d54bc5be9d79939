"""What a worker logs about its jobs: a line for each event, with the same facts as fields."""

import asyncio
import json
import logging
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from leasehold._aio import cancel
from leasehold._logger import logger_of
from leasehold._texts import many_lines, one_line
from leasehold.db.store import ClaimedJob
from leasehold.errors import LeaseholdError
from leasehold.outcome import Cancelled, Failed, Outcome, Released, Snoozed
from leasehold.upkeep.loop import Ports
from leasehold.worker.outcomes import NOT_COMMITTED

logger = logger_of("leasehold.worker")


def reported(worker: str, job: ClaimedJob, outcome: Outcome, state: str) -> None:
    """Log that an attempt did not succeed, as the database has recorded it; `state` is the job's new one."""
    match outcome:
        case Failed():
            _failed(worker, job, outcome, state)
        case Cancelled(reason):
            text = ": cancelled by its task in attempt %d (%s): %s"
            _log(logging.INFO, worker, job, text, job.attempt, _where(worker, job), _clean(reason), reason=reason)
        case Snoozed(after):
            _log(logging.DEBUG, worker, job, ": snoozed for %g s", after, after=after)
        case Released() if job.ran:
            text = ": attempt %d is thrown away after %.1f s, for the worker stops (%s); the job is given back"
            _log(logging.WARNING, worker, job, text, job.attempt, job.ran, _where(worker, job), ran=job.ran)


def _failed(worker: str, job: ClaimedJob, outcome: Failed, state: str) -> None:
    error, failures, after = outcome.error, job.retry_count + 1, outcome.retry_after
    fields = {
        "failures": failures, "max_attempts": job.max_attempts, "error_class": error.type,
        "error_message": error.message, "retry_after": after, "traceback": error.traceback,
    }  # fmt: skip
    what = f"{_clean(error.type)}: {_clean(error.message)}"
    where = f"failure {failures} of {job.max_attempts}, {_where(worker, job)}"
    if state != "dead":
        text, when = ": attempt %d failed (%s): %s; tried again%s", "" if after is None else f" in {after:.1f} s"
        _log(logging.WARNING, worker, job, text, job.attempt, where, what, when, **fields)
        return
    text, trace = " is dead, %s: attempt %d (%s): %s\n%s", many_lines(error.traceback.rstrip())
    why = "its last attempt failed" if failures >= job.max_attempts else "its failure is final"
    _log(logging.ERROR, worker, job, text, why, job.attempt, where, what, trace, **fields)


def unreported(worker: str, failure: str) -> None:
    """Log a job that failed without a report, as the database describes it: its lease expired, or it was set aside."""
    job = json.loads(failure)
    dead, where = job["state"] == "dead", f"queue {_clean(job['queue'])}, noticed by worker {_clean(worker)}"
    text, why = ("is dead, %s" if dead else "failed, %s"), job["reason"] if dead else "it is tried again"
    logger.log(
        logging.ERROR if dead else logging.WARNING, f"%s %s {text}: attempt %d (failure %d of %d, %s): %s",
        _clean(job["kind"]), job["job_id"], why, job["attempt"], job["failures"], job["max_attempts"], where,
        _clean(job["detail"] or job["reason"]), extra={"leasehold": {**job, "worker": worker}},
    )  # fmt: skip


def stored(jobs: Sequence[ClaimedJob], ids: set[str]) -> None:
    """Log that the log lines of some of these jobs could not be stored."""
    if len(ids) < len(jobs):
        text = "the log lines of %d job(s) are lost: another session has locked them, or the lease is no longer held"
        logger.warning(text, len(jobs) - len(ids))


def refused(worker: str, job: ClaimedJob) -> None:
    """Log that a report came too late."""
    text = ": the report of attempt %d was refused, the job is no longer this attempt's (%s)"
    _log(logging.WARNING, worker, job, text, job.attempt, _where(worker, job))


def completed(worker: str, job: ClaimedJob, outcome: Outcome) -> None:
    """Log that a job is a success by `complete_in`, if its task did something else than return afterwards."""
    match outcome:
        case Failed(error=error) if error.type != NOT_COMMITTED:
            text = ": attempt %d failed after it had committed complete_in (%s): %s; the job is a success"
            what = f"{_clean(error.type)}: {_clean(error.message)}"
            _log(logging.WARNING, worker, job, text, job.attempt, _where(worker, job), what, traceback=error.traceback)


def lost(worker: str, job: ClaimedJob, *, started: bool) -> None:
    """Log that a lease is gone."""
    before = "" if started else ", before it was started"
    _log(logging.WARNING, worker, job, ": lease lost, attempt %d%s (%s)", job.attempt, before, _where(worker, job))


def cancelled(worker: str, job: ClaimedJob, why: str | None, *, started: bool) -> None:
    """Log that a lease is gone because the job was cancelled."""
    what, reason = "is stopped" if started else "was not started", f": {_clean(why)}" if why else ""
    text = ": cancelled, attempt %d %s (%s)%s"
    _log(logging.INFO, worker, job, text, job.attempt, what, _where(worker, job), reason, reason=why)


def names(kinds: Iterable[str]) -> str:
    """Return some of the kinds, for a line of the log."""
    shown = [one_line(kind, 100) for kind in sorted(set(kinds))]
    return ", ".join(shown[:3]) + (", …" if len(shown) > 3 else "")


def _log(level: int, worker: str, job: ClaimedJob, text: str, *values: object, **more: Any) -> None:
    known = {"job_id": job.id, "kind": job.kind, "attempt": job.attempt, "queue": job.queue, "worker": worker}
    logger.log(level, "%s %s" + text, _clean(job.kind), job.id, *values, extra={"leasehold": {**known, **more}})


def _where(worker: str, job: ClaimedJob) -> str:
    return f"queue {_clean(job.queue)}, worker {_clean(worker)}"


def _clean(text: str) -> str:
    return one_line(text, 500)


class LostLeases:
    """Logs why leases are lost. The worker only learns that one is no longer its own; whether the job was cancelled,
    which is no trouble, only the database knows. It is queried after the task was stopped.
    """

    def __init__(self, ports: Ports) -> None:
        self._worker_id, self._link, self._store = ports.worker_id, ports.link, ports.store
        self._queries: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._away = False
        """Whether the last query failed: those that wait ask no more. Each would wait as long, and upkeep with it."""

    def add(self, job: ClaimedJob, *, started: bool) -> None:
        """Log the loss of this one as soon as the reason is known."""
        if len(self._queries) >= 20:  # no person cancels so many one by one
            lost(self._worker_id, job, started=started)
            return
        if not self._queries:
            self._away = False
        query = asyncio.create_task(self._log(job, started=started))
        self._queries.add(query)
        query.add_done_callback(self._queries.discard)

    async def close(self) -> None:
        """Log the rest, whether or not the reason is known: the worker ends."""
        if self._queries:
            await asyncio.wait(self._queries, timeout=0.5)
        self._away = True
        await cancel(*self._queries)

    async def _log(self, job: ClaimedJob, *, started: bool) -> None:
        status = None
        try:
            async with self._turn:
                if not self._away:
                    status = await self._link.run(self._store.status(UUID(job.id)))
        except (LeaseholdError, asyncio.CancelledError) as error:
            logger.debug("why leases are lost is not known: %s", error)
            self._away = True
        if status is not None and status.status == "CANCELLED":
            cancelled(self._worker_id, job, status.reason_detail, started=started)
        else:
            lost(self._worker_id, job, started=started)
