"""Coroutines: run one that blocks; wait for a while, for events and for tasks."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits by blocking its thread, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError(f"{coroutine!r} waits for an event loop")


async def sleep(seconds: float, *, blocking: bool) -> None:
    """Wait that long."""
    if blocking:
        time.sleep(seconds)  # noqa: ASYNC251
    else:
        await asyncio.sleep(seconds)


async def first_of(
    *waits: "Coroutine[Any, Any, Any] | asyncio.Task[Any]",
    timeout: float | None = None,  # noqa: ASYNC109
) -> None:
    """Return when one of these has ended, or at the timeout; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel(*tasks)


async def within(seconds: float, event: asyncio.Event) -> bool:
    """Wait so long at most; return whether the event is set."""
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def cancel(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel these, and return when they have ended."""
    ending = {task for task in tasks if not task.done()}
    while ending:  # again: what is awaited may have swallowed it, as asyncio.wait_for does before Python 3.12
        for task in ending:
            task.cancel()
        _, ending = await asyncio.wait(ending, timeout=1)
    await asyncio.gather(*tasks, return_exceptions=True)
