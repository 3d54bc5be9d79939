"""One worker process: puts the loops together, starts them and stops them in order."""

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.context import Capture
from leasehold.db.link import Link
from leasehold.db.listen import Listener
from leasehold.db.store import Store
from leasehold.errors import ConfigError
from leasehold.intent import DUE
from leasehold.upkeep.sweeper import Sweeper
from leasehold.worker.claimer import Claimer
from leasehold.worker.finisher import Finisher
from leasehold.worker.lease import LeaseKeeper
from leasehold.worker.prober import Prober
from leasehold.worker.queues import Queues
from leasehold.worker.runner import Runner
from leasehold.worker.snapshot import Snapshot, State

if TYPE_CHECKING:
    from leasehold.app import App

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker works."""

    queues: Queues = None
    """Take jobs from these queues only, all as one, or in turns by weight ({"mail": 3, "reports": 1}); None: all."""

    slots: int = 10
    """How many jobs run at the same time."""

    prefetch: int = 0
    """How many more may be claimed ahead, leased but not started."""

    grace: float = 30.0
    """Seconds that running jobs get to finish when the worker is told to stop."""

    poll: float = 10.0
    """Seconds between looks while nobody calls: the safety net under LISTEN."""

    max_jobs: int | None = None
    """Retire after this many jobs, to be replaced by a fresh process; None: never."""

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= 10_000:
            raise ConfigError(f"slots {self.slots} is not between 1 and 10000")
        if not 0 <= self.prefetch <= 10_000:
            raise ConfigError(f"prefetch {self.prefetch} is not between 0 and 10000")
        if self.grace < 0:
            raise ConfigError(f"grace {self.grace} s is negative")
        if not 0 < self.poll <= 10:
            raise ConfigError(f"poll {self.poll} s is not between 0 and 10 s")
        if self.max_jobs is not None and self.max_jobs < 1:
            raise ConfigError(f"max_jobs {self.max_jobs} is less than 1")


class Worker:
    """Claims, runs, finishes. `run()` ends after `stop()`; a second `stop()` cuts the grace period short."""

    def __init__(self, app: "App", options: WorkerOptions | None = None) -> None:
        self.app = app
        self.options = options or WorkerOptions()
        self.id = f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(4)}"
        self.store = Store(app.settings.schema)
        self.started = asyncio.Event()
        """Set when the worker is ready to take jobs."""
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self.finished = 0
        """Jobs that were run to an outcome, whichever."""
        self.retired: str | None = None
        """Why the worker stopped by itself, if it did: somebody should start another."""
        self._told = False
        self._parts: tuple[Runner, LeaseKeeper, Listener] | None = None

    def stop(self) -> None:
        """Stop claiming, let running jobs finish; called again: give them back at once."""
        if self._told:
            self.hurry()
        self._told = True
        self._stopping.set()

    @property
    def stopping(self) -> asyncio.Event:
        """Set when the worker takes no more jobs."""
        return self._stopping

    def hurry(self) -> None:
        """Cut the grace period short."""
        self._hurry.set()

    def retire(self, why: str) -> None:
        """Stop to be replaced by a fresh process. A `stop()` after it is still the first."""
        if not self._stopping.is_set():
            logger.info("worker %s retires: %s", self.id, why)
            self.retired = why
            self._stopping.set()

    def job_ended(self) -> None:
        """Count a job that was run."""
        self.finished += 1
        if self.options.max_jobs is not None and self.finished >= self.options.max_jobs:
            self.retire(f"{self.finished} jobs done")

    def snapshot(self) -> Snapshot:
        """How the worker is doing right now."""
        state: State = "starting"
        if self._stopping.is_set():
            state = "draining"
        elif self._parts is not None and self.started.is_set():
            state = "working" if self._parts[2].listening.is_set() else "waiting for the database"
        return Snapshot(
            worker=self.id, pid=os.getpid(), state=state, running=self._parts[0].running if self._parts else 0,
            slots=self.options.slots, finished=self.finished, at=time.time(),
        )  # fmt: skip

    @property
    def sound(self) -> bool:
        """Whether the thread that keeps the leases lives, or is not needed: yet, or any more."""
        return self._parts is None or not self.started.is_set() or self._parts[1].alive

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
        sweeper = Sweeper(links["upkeep"], database.store, self.app.telemetry)
        finisher.on_retry = lambda: sweeper.hint(due=True)
        listener = Listener(
            database.dsn, schema=database.store.schema, name=f"leasehold listener {self.id}",
            hint=lambda queue: _spread(queue, claimer, sweeper),
        )  # fmt: skip
        prober = Prober(links["upkeep"], database.store, listener)
        claimer.hints_arrive = lambda: prober.well
        self._parts = (runner, keeper, listener)
        await self._announce(links["upkeep"])
        keeper.start()
        capture = Capture(level=logging.INFO)
        logging.getLogger().addHandler(capture)
        logging.getLogger("leasehold.task").setLevel(logging.INFO)
        loops = [
            asyncio.create_task(part.run(), name=type(part).__name__)
            for part in (claimer, finisher, sweeper, listener, prober)
        ]
        self.started.set()
        logger.info("worker %s: %d slots, kinds %s", self.id, self.options.slots, ", ".join(sorted(self.app.tasks)))
        try:
            await self._until_stopped(loops)
        finally:
            logging.getLogger().removeHandler(capture)
            await self._shut_down(loops, claimer, runner, finisher, keeper, links)

    async def _announce(self, link: Link) -> None:
        leases = {kind: task.options.lease for kind, task in self.app.tasks.items()}
        await link.insist(
            (await self.app.adatabase()).store.start_worker(
                self.id,
                host=socket.gethostname(),
                pid=os.getpid(),
                queues=None if self.options.queues is None else list(self.options.queues),
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
        claimer.hint(queue)
    sweeper.hint(due=due or not queue)
