"""What a failed attempt had in its variables ends with the attempt, without the garbage collector."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from faults.waiting import auntil
from leasehold import App, JobFailed, NoRetry
from tests.worker import process_tasks
from tests.worker.conftest import working


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


class Held:
    """Stands for a connection, or for much memory."""


@pytest.mark.parametrize("patience", [None, 60])
@pytest.mark.parametrize("executor", ["loop", "thread"])
@pytest.mark.parametrize("error", [ValueError, SystemExit])
@pytest.mark.parametrize("hooks", [False, True])
async def test_the_variables_of_a_failed_task_end_with_its_attempt(
    app: App, executor: str, patience: float | None, error: type[BaseException], hooks: bool
) -> None:
    held: list[weakref.ref[Held]] = []
    seen: list[str] = []

    def fail() -> None:
        variable = Held()
        held.append(weakref.ref(variable))
        raise error("refused")

    if executor == "loop":

        @app.task(kind="fails", retry=NoRetry(), timeout=patience)
        async def fails() -> None:
            fail()

    else:

        @app.task(kind="fails", retry=NoRetry(), timeout=patience)
        def fails() -> None:
            fail()

    if hooks:

        @app.on_error
        def note(_: Any, raised: Exception) -> None:
            seen.append(str(raised))

        @app.around
        def around(_: Any) -> Iterator[None]:
            yield

    jobs = await app.aenqueue_many(fails.intent() for _ in range(3))
    async with working(app, slots=3):
        for job in jobs:
            with pytest.raises(JobFailed):
                await job.aresult(60)
        assert len(held) == 3
        await auntil(lambda: [one() for one in held] == [None] * 3, "nothing keeps them")
    assert len(seen) == (3 if hooks else 0)


@pytest.mark.parametrize("task", [process_tasks.keep, process_tasks.akeep])
async def test_the_variables_of_a_failed_task_in_a_process_end_with_its_attempt(app: App, task: Any) -> None:
    app.register(task)
    app.register(process_tasks.kept)
    async with working(app, slots=1, child_jobs=100):
        [first] = await app.aenqueue_many([task.intent()])
        with pytest.raises(JobFailed, match="refused"):
            await first.aresult(60)
        [then] = await app.aenqueue_many([process_tasks.kept.intent()])
        assert await then.aresult(60) == [False]
