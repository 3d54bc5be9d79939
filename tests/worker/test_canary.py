"""A canary retry with real workers: they take its steps beside their work, and none leads."""

from typing import Any

from faults.waiting import auntil
from leasehold import App
from tests.worker.conftest import working


async def test_workers_bring_a_canary_to_its_end(app: App, sql: Any) -> None:
    broken = True

    @app.task(kind="flaky", max_attempts=1)
    async def flaky() -> None:
        if broken:
            raise ConnectionError("the other side is down")

    for _ in range(40):
        await flaky.aenqueue()
    database = await app.adatabase()
    async with working(app) as worker:
        await auntil(lambda: worker.finished == 40)
        stopped = await database.arun(database.store.canary_start("flaky", "ConnectionError", "ann"))

        def state(canary: Any) -> str:
            found = sql.execute("select state from canaries where id = %s", [canary]).fetchone()
            return str(found["state"])

        await auntil(lambda: state(stopped) == "stopped")
        await auntil(lambda: worker.finished == 50)  # it was still down: ten were tried, and no more
        broken = False
        healed = await database.arun(database.store.canary_start("flaky", "ConnectionError", "ann"))
    async with working(app), working(app):
        await auntil(lambda: state(healed) == "done")
    counted = sql.execute("select state, count(*) from jobs group by state").fetchall()
    assert [(row["state"], row["count"]) for row in counted] == [("success", 40)]
    (first, second) = await database.arun(database.store.canaries())
    assert (first.retried, first.succeeded, first.failed) == (40, 40, 0)
    assert second.retried == 10
    assert str(second.reason).endswith("retried jobs failed again in stage 1")
