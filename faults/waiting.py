"""Wait for a condition: the only way in which tests and fault scenarios wait for something to happen."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

T = TypeVar("T")

PATIENCE: Final = 90.0
"""Seconds to wait where the test promises no bound: a busy machine is no defect."""

PAUSE: Final = 0.01

Detail = Callable[[], object]
"""Returns what a failure shows besides, such as a log."""


def until(
    condition: Callable[[], T], what: str = "", *, within: float = PATIENCE, pause: float = PAUSE,
    detail: Detail | None = None,
) -> T:  # fmt: skip
    """Wait until the condition returns something true and return that.

    Raises TimeoutError, which names `what` did not happen: the text of the condition unless it is given.
    """
    deadline = time.monotonic() + within
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(_failure(condition, what, within, value, detail))
        time.sleep(pause)
    return value


async def auntil(
    condition: Callable[[], Awaitable[T] | T], what: str = "", *, within: float = PATIENCE, pause: float = PAUSE,
    detail: Detail | None = None,
) -> T:  # fmt: skip
    """Do the same as `until` on an event loop; the condition may be awaitable."""
    deadline = time.monotonic() + within
    while True:
        found = condition()
        value = await found if isinstance(found, Awaitable) else found
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(_failure(condition, what, within, value, detail))
        await asyncio.sleep(pause)


def happens(condition: Callable[[], object], *, within: float, pause: float = PAUSE) -> bool:
    """Return whether the condition holds in time, where either is an answer."""
    deadline = time.monotonic() + within
    while not (held := bool(condition())) and time.monotonic() < deadline:
        time.sleep(pause)
    return held


def stays(condition: Callable[[], object], what: str = "", *, seconds: float, pause: float = PAUSE) -> None:
    """Check again and again that the condition holds for so long: for what must not happen, which sends no signal."""
    end = time.monotonic() + seconds
    while True:
        _still(condition, what)
        if time.monotonic() > end:
            return
        time.sleep(pause)


async def astays(condition: Callable[[], object], what: str = "", *, seconds: float, pause: float = PAUSE) -> None:
    """Do the same as `stays` on an event loop."""
    end = time.monotonic() + seconds
    while True:
        _still(condition, what)
        if time.monotonic() > end:
            return
        await asyncio.sleep(pause)


def _still(condition: Callable[[], object], what: str) -> None:
    if not (value := condition()):
        raise AssertionError(f"no longer true: {what or _text(condition)} (the condition returned {value!r})")


def _failure(condition: Callable[[], object], what: str, within: float, value: object, detail: Detail | None) -> str:
    shown = "" if detail is None else f"\n{str(detail())[-3000:]}"
    return f"not within {within:g} s: {what or _text(condition)} (the condition returned {value!r}){shown}"


def _text(condition: Callable[[], object]) -> str:
    """Return the source lines of a condition, or its name where it has none."""
    try:
        return " ".join(inspect.getsource(condition).split())
    except (OSError, TypeError):
        return repr(condition)
