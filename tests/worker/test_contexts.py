"""Context variables that one job sets are not seen by the next."""

from contextvars import ContextVar

from faults.waiting import auntil
from leasehold import App
from tests.worker.conftest import working

_user: ContextVar[str] = ContextVar("_user", default="none")
_place: ContextVar[str] = ContextVar("_place", default="none")


async def test_what_a_job_sets_ends_with_it_and_what_a_startup_hook_sets_does_not(app: App) -> None:
    seen: list[tuple[str, str]] = []

    @app.on_startup
    async def begin() -> None:
        _place.set("here")

    @app.task(kind="work")
    async def work(n: int) -> None:
        seen.append((_user.get(), _place.get()))
        _user.set(f"user {n}")

    await app.aenqueue_many(work.intent(n) for n in range(5))
    async with working(app, slots=1, prefetch=4) as worker:
        await auntil(lambda: worker.finished == 5)
    assert seen == [("none", "here")] * 5
