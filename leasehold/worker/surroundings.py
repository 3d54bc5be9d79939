"""What is different in a process while a worker runs in it: tasks are heard, and cannot end the event loop."""

import asyncio
import logging
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any

from leasehold import logs
from leasehold.context import Capture, running_job
from leasehold.worker.judge import as_error


@contextmanager
def surroundings() -> Iterator[None]:
    """Lines of log know their job and are kept with it; asyncio tasks that a job starts do not end the loop."""
    capture = Capture(level=logging.INFO)
    logging.getLogger().addHandler(capture)
    logging.getLogger("leasehold.task").setLevel(logging.INFO)
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    loop.set_task_factory(_make_task)
    try:
        with logs.bound():
            yield
    finally:
        loop.set_task_factory(before)
        logging.getLogger().removeHandler(capture)


def _make_task(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **options: Any
) -> "asyncio.Task[Any]":
    """A SystemExit that leaves an asyncio task ends the event loop; in one that a job started it is an error."""
    return asyncio.Task(
        _Contained(coro) if asyncio.iscoroutine(coro) and running_job() is not None else coro, loop=loop, **options
    )


class _Contained(Coroutine[Any, Any, Any]):
    """A coroutine out of which no SystemExit comes. Not one around it: that would leave it unawaited, if cancelled."""

    def __init__(self, coro: Coroutine[Any, Any, Any]) -> None:
        self._coro = coro

    def send(self, value: Any) -> Any:
        try:
            return self._coro.send(value)
        except (SystemExit, KeyboardInterrupt) as end:
            raise as_error(end) from None

    def throw(self, *error: Any) -> Any:
        try:
            return self._coro.throw(*error)
        except (SystemExit, KeyboardInterrupt) as end:
            raise as_error(end) from None

    def close(self) -> None:
        self._coro.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coro.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coro, name)
