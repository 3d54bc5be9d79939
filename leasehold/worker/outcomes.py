"""Turns what a task returned or raised into an outcome, and outcomes into reports to the database."""

import json
from dataclasses import replace
from typing import Any

from leasehold._logger import logger_of
from leasehold._texts import MAX_MESSAGE, repr_of, text_of
from leasehold.context import running_job
from leasehold.db.connections.foreign import execute_on
from leasehold.db.store import ClaimedJob, Store, Token
from leasehold.errors import ArgumentsDoNotFit, InvalidArguments, LeaseholdError, LeaseLost, ResultDoesNotFit
from leasehold.outcome import Cancel, Cancelled, Error, Failed, Outcome, Retry, Snooze, Snoozed, Success
from leasehold.task import Task

logger = logger_of(__name__)

_RETRY_AFTER_DEFECT = 60.0
"""Seconds until the next attempt of a job whose retry policy failed, or whose success could not be recorded."""

_warned: set[str] = set()
"""Kinds whose discarded results were logged."""

NO_RESULT = Success(None)
"""The outcome of most tasks: one object for all of them."""


def outcome_of(task: Task[..., Any], retry_count: int, value: object) -> Outcome:
    """Return the outcome of an attempt that returned or raised `value`, after `retry_count` failures. Never raises."""
    try:
        return _outcome(task, retry_count, value)
    except BaseException as broken:  # noqa: BLE001 (the value's own methods ran, and may raise anything)
        return _failure(task, retry_count, as_error(broken))


def set_aside(invalid: InvalidArguments) -> ArgumentsDoNotFit:
    """Return the error of a job whose arguments cannot be decoded: another attempt would end the same way."""
    message = f"the job is set aside, its arguments do not fit the task: {invalid.args[0]}"
    return ArgumentsDoNotFit(message, hint="mend the task and retry the job, or enqueue it anew with other arguments")


def as_error(raised: BaseException) -> Exception:
    """Return what a task raised as an error of its job.

    SystemExit, KeyboardInterrupt and their like are one as well: the job fails, and the worker goes on. So is an
    exception that is not of the class that it claims to be.
    """
    try:
        honest = raised.__class__ is type(raised)
    except BaseException:  # noqa: BLE001 (a property, which may raise anything)
        honest = False
    if honest and isinstance(raised, Exception):
        return raised
    where = BaseException.__dict__["__traceback__"].__get__(raised)
    return RuntimeError(f"the task raised {repr_of(raised)}").with_traceback(where)


def _outcome(task: Task[..., Any], retry_count: int, value: object) -> Outcome:  # noqa: PLR0911 (a table)
    if not isinstance(value, Exception):
        if value is not None:
            _warn_of_discarded(task)
        try:
            return Success(task.result.encode(value))
        except LeaseholdError as error:
            return _outcome(task, retry_count, error)
    match value:
        case Snooze():
            return Snoozed(value.after)
        case Cancel():
            return Cancelled(text_of(value, MAX_MESSAGE))
        case Retry(after=float() as after):
            return Failed(error=Error.from_exception(value), retry_after=after)
        case ArgumentsDoNotFit() | ResultDoesNotFit():
            return Failed(error=Error.from_exception(value), retry_after=None, fatal=True)
    return _failure(task, retry_count, value)


def _warn_of_discarded(task: Task[..., Any]) -> None:
    """Log, once for each kind, that the value which a task returns is lost: `complete_in` has recorded no result."""
    job = running_job()
    if job is not None and job.completed_bare and task.kind not in _warned:
        _warned.add(task.kind)
        text = "%s returned a value after complete_in, which is not recorded: use complete_in(connection, result=…)"
        logger.warning(text, task.kind)


def _failure(task: Task[..., Any], retry_count: int, error: Exception) -> Failed:
    try:
        delay = task.options.retry.delay(retry_count + 1, error)
        return Failed(error=Error.from_exception(error), retry_after=delay, fatal=delay is None)
    except BaseException as broken:
        # A broken policy must not cost the job its retries.
        logger.exception("the retry policy of %s failed", task.kind)
        broken.__cause__ = error
        return Failed(error=Error.from_exception(broken), retry_after=_RETRY_AFTER_DEFECT)


class NotCommitted(LeaseholdError):
    """A task called `complete_in` and returned, but its transaction was not committed."""


NOT_COMMITTED = Error.from_exception(NotCommitted("")).type
"""The class of that error, as it is recorded."""


def unless_committed(task: Task[..., Any], job: ClaimedJob, outcome: Outcome) -> Outcome:
    """Return what to report of a task that called `complete_in`: a failure, if it returned and its job still runs.

    Only the task's own transaction can make it a success. The report of a failure counts only while the attempt owns
    its job; if the transaction was committed, it does not, and the finisher finds the success.
    """
    if not isinstance(outcome, Success):
        return outcome
    hint = "commit it before the task returns, or raise what prevents that"
    error = NotCommitted("complete_in was called, but its transaction was not committed", hint=hint)
    return _failure(task, job.retry_count, error)


# -- reports


def fields_of(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as the fields of a report to the database, or of a message from a process to its worker."""
    match outcome:
        case Success(result):
            return {"outcome": "success", "result": result}
        case Failed(error=error, retry_after=after, fatal=fatal):
            shown = {"class": error.type, "message": error.message, "traceback": error.traceback}
            return {"outcome": "failed", "retry_after": after, "fatal": fatal, "error": shown}
        case Snoozed(after):
            return {"outcome": "snoozed", "retry_after": after}
        case Cancelled(reason):
            return {"outcome": "cancelled", "error": {"message": reason}}
    return {"outcome": "released"}


def failure_of(job: ClaimedJob, outcome: Outcome) -> dict[str, Any]:
    """Return an outcome other than success as the SQL function fail_many accepts it."""
    return {"id": job.id, "attempt": job.attempt, "claim_id": job.claim_id, **fields_of(outcome)}


def report_of(outcome: Outcome) -> str:
    """Return an outcome as the SQL function report_each accepts it. Any text can be sent; PostgreSQL checks it."""
    if isinstance(outcome, Success):  # its result is JSON already; None is no result, not JSON's null
        result = "" if outcome.result is None else f', "result": {outcome.result}'
        text = f'{{"outcome": "success"{result}}}'
    else:
        text = json.dumps(fields_of(outcome))
    return text.replace("\0", "\\u0000").encode("utf-8", "backslashreplace").decode()


def refused(message: str) -> Error:
    """Return the error of an attempt whose report the database refuses."""
    return Error(type="leasehold.ReportRefused", message=message, traceback="")


def without_text(outcome: Outcome, refusal: LeaseholdError) -> Outcome:
    """Return the outcome without the task's own text, which the database refuses, and with the reason instead."""
    what = "result" if isinstance(outcome, Success) else "report"
    text = f"the attempt's {what} is refused by the database: {refusal}"[:1000]
    text = text.encode("ascii", "backslashreplace").decode().replace("\0", "\\x00")
    match outcome:
        case Failed():
            return replace(outcome, error=refused(text))
        case Cancelled():
            return Cancelled(text)
        case Success() | Snoozed():
            return Failed(error=refused(text), retry_after=_RETRY_AFTER_DEFECT)
    return outcome


async def complete_in(
    connection: object, result: object, *, blocking: bool, worker: str, store: Store, task: Task[..., Any], token: Token
) -> None:
    """Complete an attempt inside its task's own transaction, by the same fenced statement as the finisher's.

    The worker never reports a success afterwards (`unless_committed`): that would stand without the task's effects when
    the transaction is rolled back.
    """
    call = store.complete_in(worker, token, task.result.encode(result))
    if not await execute_on(connection, call, blocking=blocking):
        message = f"job {token.id}: attempt {token.attempt} no longer owns it"
        raise LeaseLost(message, hint="roll back; another worker runs it, or it was cancelled")
