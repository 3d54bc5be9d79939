"""The tasks of the poison matrix: each says a value of the corpus in one place, or behaves."""

import asyncio
import inspect
import logging
from typing import Any, Final

from faults.matrix.behaviours import DEADLY, EVERYWHERE, ON_THE_LOOP
from faults.matrix.corpus import VALUES
from faults.matrix.tasks import app
from faults.tasks import note
from leasehold import Cancel, Retry, Snooze, current_job
from leasehold.retry import FixedDelay

PLACES: Final = (
    "return", "raise", "raise class", "raise from", "note of exception", "progress", "progress fraction", "log", "log argument",
    "log level", "own logger", "cancel", "cancel returned", "retry", "retry after", "snooze", "returned in a list",
)  # fmt: skip
"""Where a task can say something."""

_ACTS: Final = EVERYWHERE | ON_THE_LOOP | DEADLY


def say(place: str, value: Any) -> Any:  # noqa: C901, PLR0912 (one case for each place)
    """Say it there."""
    job = current_job()
    match place:
        case "return":
            return value
        case "returned in a list":
            return [value]
        case "raise":
            raise RuntimeError(value)
        case "raise class":
            raise type(str(value)[:1000].replace("\0", "0") or "Empty", (Exception,), {})(value)
        case "raise from":
            raise ValueError("outer") from RuntimeError(value)
        case "note of exception":
            error = ValueError("noted")
            error.add_note(value)
            raise error
        case "progress":
            job.progress(0.5, value)
            job.heartbeat()
        case "progress fraction":
            job.progress(value)
            job.heartbeat()
        case "log":
            job.log.info(value)
        case "log argument":
            job.log.info("said %s and %r", value, value)
        case "log level":
            job.log.log(value, "said")
        case "own logger":
            logging.getLogger(f"mine.{str(value)[:50]}").warning("%s", value, extra={"x": value})
        case "cancel":
            raise Cancel(value)
        case "cancel returned":
            return Cancel(value)
        case "retry":
            raise Retry(0.05, value)
        case "retry after":
            raise Retry(value)
        case "snooze":
            if job.attempt > 1:
                return None
            raise Snooze(value)
    return None


_OPTIONS: Final[dict[str, Any]] = {"lease": 20, "max_attempts": 2, "retry": FixedDelay(0.05)}


@app.task(kind="say", **_OPTIONS)
async def say_here(place: str, value: str) -> Any:
    """On the event loop."""
    note("begin")
    result = say(place, VALUES[value])
    await asyncio.sleep(0.05 if place.startswith("progress") else 0)
    return result


@app.task(kind="say in a thread", **_OPTIONS)
def say_in_thread(place: str, value: str) -> Any:
    """In a thread."""
    note("begin")
    return say(place, VALUES[value])


@app.task(kind="behave", **_OPTIONS)
async def behave_here(what: str) -> Any:
    """On the event loop."""
    note("begin")
    found = _ACTS[what]()
    return repr(await found) if inspect.isawaitable(found) else found


@app.task(kind="behave in a thread", **_OPTIONS)
def behave_in_thread(what: str) -> Any:
    """In a thread."""
    note("begin")
    return _ACTS[what]()


@app.task(kind="say in a process", executor="process", **_OPTIONS)
def say_in_process(place: str, value: str) -> Any:
    """In a process."""
    return say(place, VALUES[value])


@app.task(kind="behave in a process", executor="process", **_OPTIONS)
def behave_in_process(what: str) -> Any:
    """In a process."""
    return _ACTS[what]()


@app.task(kind="eat", **_OPTIONS)
async def eat(a: Any = None, value: Any = None) -> bool:
    """Takes anything."""
    note("begin")
    return a is value
