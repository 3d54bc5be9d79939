"""A canary retry with real workers: they take its steps beside their work, and nobody leads."""

from typing import Any

from leasehold import App
from tests.worker.conftest import until, working


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
        await until(lambda: worker.finished == 40, within=60)
        stopped = await database.arun(database.store.canary_start("flaky", "ConnectionError", "ann"))

        def state(canary: Any) -> str:
            found = sql.execute("select state from canaries where id = %s", [canary]).fetchone()
            return str(found["state"])

        await until(lambda: state(stopped) == "stopped", within=60)
        await until(lambda: worker.finished == 50)  # it was still down: ten were tried, and no more
        broken = False
        healed = await database.arun(database.store.canary_start("flaky", "ConnectionError", "ann"))
    async with working(app), working(app):
        await until(lambda: state(healed) == "done", within=60)
    counted = sql.execute("select state, count(*) from jobs group by state").fetchall()
    assert [(row["state"], row["count"]) for row in counted] == [("success", 40)]
    (first, second) = await database.arun(database.store.canaries())
    assert (first.retried, first.succeeded, first.failed) == (40, 40, 0)
    assert second.retried == 10
    assert str(second.reason).endswith("retried jobs failed again in stage 1")
