"""The loggers of Leasehold itself: what the application's handlers, filters and record factory raise stays in them."""

import logging
import os
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final


def logger_of(name: str) -> logging.Logger:
    """Return the logger of this name. A line that cannot be logged must not end the worker that wanted to log it."""
    logger = logging.getLogger(name)
    # Not a class of our own: the application may have set one with logging.setLoggerClass.
    logger.makeRecord = partial(_made, logger.makeRecord)  # type: ignore[method-assign]
    logger.handle = partial(_handled, logger.handle)  # type: ignore[method-assign]
    return logger


_reported: Final = threading.Event()


def _made(make: Callable[..., logging.LogRecord], *fields: Any) -> logging.LogRecord:
    try:
        return make(*fields)
    except Exception:  # noqa: BLE001 (the factory is the application's)
        _report_once("the record factory")
        *plain, extra, stack = fields
        record = logging.LogRecord(*[*plain, stack])
        vars(record).update(extra or {})
        return record


def _handled(handle: Callable[[logging.LogRecord], None], record: logging.LogRecord) -> None:
    try:
        handle(record)
    except Exception:  # noqa: BLE001 (handlers and filters are the application's)
        _report_once("a handler or filter")


def _report_once(what: str) -> None:
    if logging.raiseExceptions and not _reported.is_set():
        _reported.set()
        text = f"leasehold: {what} of logging has failed; this is reported once:\n{_failure()}"
        with suppress(RuntimeError):  # no more threads
            # In a thread: standard error may be a full pipe.
            threading.Thread(target=_report, args=(text,), name="leasehold-report", daemon=True).start()


def _failure() -> str:
    try:
        return traceback.format_exc()
    except Exception:  # noqa: BLE001 (the error's own __str__)
        return "(the error cannot be formatted)\n"


def _report(text: str) -> None:
    with suppress(OSError):
        os.write(2, text.encode(errors="backslashreplace"))
