"""Waiting for coroutines and ending them."""

import asyncio

import pytest

from leasehold._aio import cancel, first_of


async def _deaf(times: int) -> None:
    """Swallows so many cancellations, as asyncio.wait_for may before Python 3.12."""
    for _ in range(times):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue
    await asyncio.Event().wait()


async def test_a_task_that_swallows_its_cancellation_is_cancelled_again() -> None:
    deaf = asyncio.create_task(_deaf(1))
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await cancel(deaf)
    assert deaf.cancelled()


async def test_a_cancelled_wait_ends_though_a_task_swallowed_its_cancellation() -> None:
    waiting = asyncio.create_task(first_of(_deaf(1), asyncio.Event().wait()))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):  # and not TimeoutError
        async with asyncio.timeout(15):
            await waiting


async def test_a_task_that_has_ended_keeps_its_result() -> None:
    async def done() -> int:
        return 1

    task = asyncio.create_task(done())
    await task
    await cancel(task)
    assert task.result() == 1
