"""One worker process: puts the loops together, starts them and stops them in order."""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.db.link import Link
from leasehold.db.listen import DUE, Listener
from leasehold.errors import ConfigError
from leasehold.upkeep.sweeper import Sweeper
from leasehold.worker.claimer import Claimer
from leasehold.worker.finisher import Finisher
from leasehold.worker.lease import LeaseKeeper
from leasehold.worker.runner import Runner

if TYPE_CHECKING:
    from leasehold.app import App

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker works."""

    queues: Sequence[str] | None = None
    """Take jobs from these queues only; None: from all."""

    slots: int = 10
    """How many jobs run at the same time."""

    prefetch: int = 0
    """How many more may be claimed ahead, leased but not started."""

    grace: float = 30.0
    """Seconds that running jobs get to finish when the worker is told to stop."""

    poll: float = 10.0
    """Seconds between looks while nobody calls: the safety net under LISTEN."""

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= 10_000:
            raise ConfigError(f"slots {self.slots} is not between 1 and 10000")
        if not 0 <= self.prefetch <= 10_000:
            raise ConfigError(f"prefetch {self.prefetch} is not between 0 and 10000")
        if self.grace < 0:
            raise ConfigError(f"grace {self.grace} s is negative")
        if not 0 < self.poll <= 10:
            raise ConfigError(f"poll {self.poll} s is not between 0 and 10 s")


class Worker:
    """Claims, runs, finishes. `run()` ends after `stop()`; a second `stop()` cuts the grace period short."""

    def __init__(self, app: "App", options: WorkerOptions | None = None) -> None:
        self.app = app
        self.options = options or WorkerOptions()
        self.id = f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(4)}"
        self.started = asyncio.Event()
        """Set when the worker is ready to take jobs."""
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()

    def stop(self) -> None:
        """Stop claiming, let running jobs finish; called again: give them back at once."""
        (self._hurry if self._stopping.is_set() else self._stopping).set()

    async def run(self) -> None:
        """Work until stopped."""
        if not self.app.tasks:
            raise ConfigError("the app has no tasks", hint="register some with @app.task before starting a worker")
        database = await self.app.adatabase()
        prepare = self.app.settings.prepare
        links = {
            name: Link(database.dsn, name=f"leasehold {name} {self.id}", prepare=prepare)
            for name in ("claimer", "finisher", "upkeep")
        }
        keeper = LeaseKeeper(self, database, prepare=prepare)
        finisher = Finisher(self, links["finisher"], database.store, keeper)
        runner = Runner(self, finisher, keeper)
        claimer = Claimer(self, links["claimer"], database.store, runner)
        sweeper = Sweeper(links["upkeep"], database.store)
        listener = Listener(
            database.dsn, schema=database.store.schema, name=f"leasehold listener {self.id}",
            hint=lambda queue: _spread(queue, claimer, sweeper),
        )  # fmt: skip
        await self._announce(links["upkeep"])
        keeper.start()
        loops = [
            asyncio.create_task(part.run(), name=type(part).__name__) for part in (claimer, finisher, sweeper, listener)
        ]
        self.started.set()
        logger.info("worker %s: %d slots, kinds %s", self.id, self.options.slots, ", ".join(sorted(self.app.tasks)))
        try:
            await self._until_stopped(loops)
        finally:
            await self._shut_down(loops, claimer, runner, finisher, keeper, links)

    async def _announce(self, link: Link) -> None:
        leases = {kind: task.options.lease for kind, task in self.app.tasks.items()}
        await link.insist(
            (await self.app.adatabase()).store.start_worker(
                self.id,
                host=socket.gethostname(),
                pid=os.getpid(),
                queues=self.options.queues,
                leases=leases,
                slots=self.options.slots,
            )
        )

    async def _until_stopped(self, loops: list[asyncio.Task[None]]) -> None:
        """Return when told to stop; raise if a loop ends by itself, which is a defect."""
        stopping = asyncio.create_task(self._stopping.wait())
        done, _ = await asyncio.wait([stopping, *loops], return_when=asyncio.FIRST_COMPLETED)
        for loop in done - {stopping}:
            stopping.cancel()
            loop.result()
            raise RuntimeError(f"the {loop.get_name()} loop ended")

    async def _shut_down(
        self,
        loops: list[asyncio.Task[None]],
        claimer: Claimer,
        runner: Runner,
        finisher: Finisher,
        keeper: LeaseKeeper,
        links: dict[str, Link],
    ) -> None:
        """No more claims; finish or give back what runs; report it all; only then let go of the leases."""
        await claimer.stop()
        await runner.drain(self.options.grace, self._hurry)
        await finisher.drain()
        keeper.stop()
        await self._quietly(lambda: links["upkeep"].run(self.app.database.store.stop_worker(self.id)))
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        for link in links.values():
            await link.close()
        logger.info("worker %s stopped", self.id)

    @staticmethod
    async def _quietly(step: Callable[[], Awaitable[object]]) -> None:
        try:
            async with asyncio.timeout(2):
                await step()
        except Exception as error:  # noqa: BLE001 (a courtesy to onlookers; leases are what counts)
            logger.debug("while stopping: %s", error)


def _spread(queue: str, claimer: Claimer, sweeper: Sweeper) -> None:
    """Pass a hint on to whom it concerns."""
    due = queue == DUE
    if not due:
        claimer.wake()
    sweeper.hint(due=due or not queue)
