"""Outcomes as the SQL functions take them, and what is reported of one that they do not take."""

from dataclasses import replace
from typing import Any, Final

from leasehold.db.store import ClaimedJob
from leasehold.errors import LeaseholdError
from leasehold.outcome import Cancelled, Error, Failed, Outcome, Snoozed, Success

_AGAIN: Final = 60.0
"""Seconds until an attempt whose success could not be recorded is made again."""

_LONGEST: Final = 1000


def failure(job: ClaimedJob, outcome: Outcome) -> dict[str, Any]:
    """An outcome that is no success as the SQL function fail_many takes it."""
    report: dict[str, Any] = {"id": job.id, "attempt": job.attempt, "claim_id": job.claim_id}
    match outcome:
        case Failed(error=error, retry_after=after, fatal=fatal):
            report |= {"outcome": "failed", "retry_after": after, "fatal": fatal, "error": _error(error)}
        case Snoozed(after):
            report |= {"outcome": "snoozed", "retry_after": after}
        case Cancelled(reason):
            report |= {"outcome": "cancelled", "error": {"message": reason}}
    return report


def plainly(outcome: Outcome, refusal: LeaseholdError) -> Outcome:
    """The outcome without anything that the task has said, which the database does not take, but with the reason."""
    what = "result" if isinstance(outcome, Success) else "report"
    text = f"the attempt's {what} is refused by the database: {refusal}"[:_LONGEST]
    text = text.encode("ascii", "backslashreplace").decode().replace("\0", "\\x00")
    error = Error(type="leasehold.ReportRefused", message=text, traceback="")
    match outcome:
        case Failed():
            return replace(outcome, error=error)
        case Cancelled():
            return Cancelled(text)
        case Success() | Snoozed():
            return Failed(error=error, retry_after=_AGAIN)
    return outcome


def _error(error: Error) -> dict[str, str]:
    return {"class": error.type, "message": error.message, "traceback": error.traceback}
