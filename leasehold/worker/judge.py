"""Turns whatever a task returned or raised into an outcome."""

import logging
from typing import Any

from leasehold.errors import LeaseholdError
from leasehold.outcome import Cancel, Cancelled, Error, Failed, Outcome, Retry, Snooze, Snoozed, Success
from leasehold.task import Task

logger = logging.getLogger(__name__)

_BROKEN_POLICY_DELAY = 60.0

NO_RESULT = Success(None)
"""What most tasks give: one for all of them."""


def outcome_of(task: Task[..., Any], retry_count: int, value: object) -> Outcome:
    """The outcome of an attempt that returned or raised `value`, after `retry_count` earlier failures."""
    match value:
        case Snooze():
            return Snoozed(value.after)
        case Cancel():
            return Cancelled(str(value))
        case Retry(after=float() as after):
            return Failed(error=Error.from_exception(value), retry_after=after)
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
    except Exception as broken:
        # A broken policy must not cost the job its retries.
        logger.exception("the retry policy of %s failed", task.kind)
        broken.__cause__ = error
        return Failed(error=Error.from_exception(broken), retry_after=_BROKEN_POLICY_DELAY)
    return Failed(error=Error.from_exception(error), retry_after=delay, fatal=delay is None)
