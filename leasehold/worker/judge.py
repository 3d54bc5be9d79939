"""Turns whatever a task returned or raised into an outcome."""

import logging
from typing import Any

from leasehold.errors import ArgumentsDoNotFit, InvalidArguments, LeaseholdError
from leasehold.outcome import Cancel, Cancelled, Error, Failed, Outcome, Retry, Snooze, Snoozed, Success
from leasehold.task import Task
from leasehold.texts import MAX_MESSAGE, repr_of, text_of

logger = logging.getLogger(__name__)

_BROKEN_POLICY_DELAY = 60.0

NO_RESULT = Success(None)
"""What most tasks give: one for all of them."""


def outcome_of(task: Task[..., Any], retry_count: int, value: object) -> Outcome:
    """The outcome of an attempt that returned or raised `value`, after `retry_count` earlier failures. Never raises."""
    try:
        return _outcome(task, retry_count, value)
    except BaseException as broken:  # noqa: BLE001 (the value's own methods ran, and may raise anything)
        return _failure(task, retry_count, as_error(broken))


def arguments_of(task: Task[..., Any], payload: str) -> dict[str, Any]:
    """What to call the function with, or ArgumentsDoNotFit: another attempt would end the same way."""
    try:
        return task.arguments.decode(payload)
    except InvalidArguments as error:
        raise ArgumentsDoNotFit(
            f"the job is set aside, its arguments do not fit the task: {error.args[0]}",
            hint="mend the task and retry the job, or enqueue it anew with other arguments",
        ) from None


def as_error(raised: BaseException) -> Exception:
    """What a task raised, as an error of its job.

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
    match value:
        case Snooze():
            return Snoozed(value.after)
        case Cancel():
            return Cancelled(text_of(value, MAX_MESSAGE))
        case Retry(after=float() as after):
            return Failed(error=Error.from_exception(value), retry_after=after)
        case ArgumentsDoNotFit():
            return Failed(error=Error.from_exception(value), retry_after=None, fatal=True)
        case Exception():
            return _failure(task, retry_count, value)
        case _:
            try:
                return Success(task.result.encode(value))
            except LeaseholdError as error:
                return _failure(task, retry_count, error)


def _failure(task: Task[..., Any], retry_count: int, error: Exception) -> Failed:
    try:
        delay = task.options.retry.delay(retry_count + 1, error)
        return Failed(error=Error.from_exception(error), retry_after=delay, fatal=delay is None)
    except BaseException as broken:
        # A broken policy must not cost the job its retries.
        logger.exception("the retry policy of %s failed", task.kind)
        broken.__cause__ = error
        return Failed(error=Error.from_exception(broken), retry_after=_BROKEN_POLICY_DELAY)
