"""The loops of one worker, what connects them, and the order in which they start and end."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from leasehold.db.link import Link
from leasehold.db.listen import Listener
from leasehold.db.outage import Outage
from leasehold.intent import CANCEL, DUE
from leasehold.schedule import SCHEDULE
from leasehold.upkeep.scheduler import Scheduler
from leasehold.upkeep.sweeper import Sweeper
from leasehold.worker import lines
from leasehold.worker.aftermath import Aftermath
from leasehold.worker.claimer import Claimer
from leasehold.worker.finisher import Finisher
from leasehold.worker.journal import Place
from leasehold.worker.lease import LeaseKeeper
from leasehold.worker.losses import Losses
from leasehold.worker.prober import Prober
from leasehold.worker.runner import Runner
from leasehold.worker.statistics import Statistician
from leasehold.worker.turning import Turning

if TYPE_CHECKING:
    from leasehold.db.pool import Database
    from leasehold.worker.worker import Worker

logger = logging.getLogger(__name__)

Death = tuple[str, BaseException | None]
"""Which loop has ended, and of what."""

_UPKEEP_PATIENCE = 5.0
"""Seconds at least for an answer to calls that no lease depends on: they may have much to do."""

_LAST_REPORTS = 60.0
"""Seconds at most for the last reports of a worker that stops. With the database away they end with the leases."""

_STUCK = 10.0
"""Seconds without an answer after which a part counts as stuck."""


class Parts:
    """Each loop has a connection of its own; the claimer never waits behind a report, nor a lease behind either."""

    def __init__(self, worker: "Worker", database: "Database") -> None:
        prepare, store = worker.app.settings.prepare, database.store
        self._worker = worker
        shortest = min(task.options.lease for task in worker.app.tasks.values())
        patience = {"claimer": shortest / 3, "finisher": shortest / 3, "upkeep": max(shortest / 3, _UPKEEP_PATIENCE)}
        self._links = {
            name: Link(database.dsn, name=f"leasehold {name} {worker.id}", prepare=prepare, patience=seconds)
            for name, seconds in patience.items()
        }
        self.upkeep_link = self._links["upkeep"]
        self.outage = Outage()
        self.keeper = LeaseKeeper(worker, database, prepare=prepare, outage=self.outage)
        self.finisher = Finisher(worker, self._links["finisher"], store, self.keeper, self.outage)
        place = Place(database.dsn, store.schema)
        self.losses = Losses(worker.id, self.upkeep_link, store)
        self.runner = Runner(worker, self.finisher, self.keeper, place, self.losses)
        self.turning = Turning(worker.id, self.runner.kinds_on_loop)
        self.turning.on_standstill = worker.say_standstill
        self.aftermath = Aftermath(place, self.upkeep_link, store, self.runner)
        self.claimer = Claimer(worker, self._links["claimer"], store, self.runner, self.outage)
        self.sweeper = Sweeper(worker.id, self.upkeep_link, store, worker.app.telemetry, self.outage)
        self.scheduler = Scheduler(worker.id, self.upkeep_link, store, worker.app.telemetry, self.outage)
        self.listener = Listener(
            database.dsn, schema=store.schema, name=f"leasehold listener {worker.id}", hint=self._hint
        )
        self.prober = Prober(self.upkeep_link, store, self.listener)
        self.statistician = Statistician(worker.id, self.upkeep_link, store, self.finisher.tally)
        self.finisher.on_retry = lambda: self.sweeper.hint(due=True)
        self.claimer.on_surprise = self.prober.doubt
        self.claimer.hints_arrive = self.scheduler.hints_arrive = lambda: self.prober.well
        self.loops: list[asyncio.Task[None]] = []
        self.death: asyncio.Future[Death] = asyncio.get_running_loop().create_future()
        """Done when a loop or the keeper has ended though it should not have."""
        self._ending = False
        self.closed = False

    def _hint(self, queue: str) -> None:
        """Pass a hint on to whom it concerns."""
        if queue == SCHEDULE or not queue:  # no name: some may have been lost
            self.scheduler.hint()
        if queue == SCHEDULE:
            return
        if queue.startswith(CANCEL):
            self.runner.look_at(queue.removeprefix(CANCEL))
            return
        due = queue == DUE
        if not due:
            self.claimer.hint(queue)
        self.sweeper.hint(due=due or not queue)

    def start(self) -> None:
        """Start every loop, the keeper of the leases first."""
        self.keeper.on_death = lambda error: self._died("LeaseKeeper", error)
        self.runner.start()
        self.keeper.start()
        self.turning.start()
        self.loops = [
            asyncio.create_task(_without_exit(part.run()), name=type(part).__name__)
            for part in (
                self.claimer,
                self.finisher,
                self.sweeper,
                self.scheduler,
                self.listener,
                self.prober,
                self.statistician,
                self.aftermath,
            )
        ]

        for loop in self.loops:
            loop.add_done_callback(self._loop_ended)

    def _loop_ended(self, loop: asyncio.Task[None]) -> None:
        self._died(loop.get_name(), None if loop.cancelled() else loop.exception())

    def _died(self, part: str, error: BaseException | None) -> None:
        if not self._ending and not self.death.done():
            self.death.set_result((part, error))

    def stuck(self) -> dict[str, str]:
        """The parts that a job needs and that have not moved lately, and what they wait for."""
        now = time.monotonic()
        waits = {
            "claimer": (self.claimer.claiming_since, "no claim has been answered"),
            "finisher": (self.finisher.waiting_since, "no report has been taken"),
            "keeper": (self.keeper.overdue_since, "no lease has been renewed"),
        }
        stuck = {
            part: f"{what} for {now - since:.0f} s"
            for part, (since, what) in waits.items()
            if since is not None and now - since > _STUCK
        }
        if (since := self.turning.since) is not None:
            stuck["event loop"] = f"it has not turned for {now - since:.0f} s"
        return stuck

    async def shut_down(self, grace: float, hurry: asyncio.Event) -> None:
        """No more claims; finish or give back what runs; report it all; only then let go of the leases."""
        lines.worker_drains(self._worker.id, self.runner.running, grace)
        await self.claimer.stop()
        firing = asyncio.create_task(self.scheduler.stop())
        await self.runner.drain(grace, hurry)
        try:
            async with asyncio.timeout(_LAST_REPORTS):
                await self.finisher.drain()
        except TimeoutError:
            logger.critical("%d reports were not taken; their jobs are left to their leases", self.finisher.backlog)
        await asyncio.wait(
            [firing], timeout=2
        )  # a schedule that it could not fire by then is another's when the claim expires
        firing.cancel()
        self.keeper.stop()
        await _quietly(self._say_goodbye, logging.WARNING)
        await self._end_loops()
        await self.close()

    async def abandon(self) -> None:
        """Renew nothing more, stop what runs, and end, in bounded time whatever the loops do."""
        self._ending = True
        self.keeper.stop()
        self.runner.abandon()
        await _quietly(self._end_loops)
        await _quietly(self.close)

    async def _end_loops(self) -> None:
        self._ending = True
        ending = set(self.loops)
        while ending:  # again: a library may have swallowed it
            for loop in ending:
                loop.cancel()
            _, ending = await asyncio.wait(ending, timeout=1)
        await asyncio.gather(*self.loops, return_exceptions=True)
        await self.finisher.stop()

    async def _say_goodbye(self) -> None:
        await self.statistician.flush()
        await self.upkeep_link.run(self._worker.store.stop_worker(self._worker.id))

    async def close(self) -> None:
        """Close the connections, and the journal."""
        self.closed = True
        self.turning.stop()
        await self.losses.close()
        if self.runner.journal is not None:
            self.runner.journal.close(orderly=not self.runner.running and not self.death.done())
            self.runner.journal = None
        for link in self._links.values():
            await link.close()


async def _without_exit(loop: Awaitable[None]) -> None:
    """A loop that ends is the worker's end: SystemExit would leave the event loop at once, with another code."""
    try:
        await loop
    except (SystemExit, KeyboardInterrupt) as end:
        raise RuntimeError(f"{type(end).__name__} came out of it: {end}") from end


async def _quietly(step: Callable[[], Awaitable[object]], level: int = logging.DEBUG) -> None:
    try:
        async with asyncio.timeout(2):
            await step()
    except Exception as error:  # noqa: BLE001 (a courtesy to onlookers; leases are what counts)
        logger.log(level, "while the worker stops: %s", str(error) or type(error).__name__)
