"""The loops of one worker, what connects them, and the order in which they start and end."""

import asyncio
import logging
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from leasehold._aio import cancel
from leasehold._clock import monotonic
from leasehold._logger import logger_of
from leasehold._texts import one_line
from leasehold.app import App
from leasehold.db.connections.link import Link, Reserve
from leasehold.db.connections.outage import Outage
from leasehold.db.database import Database
from leasehold.db.notify import CANCEL, DUE, QUEUE, Listener, Prober
from leasehold.schedule import SCHEDULE
from leasehold.upkeep.loop import Ports
from leasehold.upkeep.scheduler import Scheduler
from leasehold.upkeep.sweeper import Sweeper
from leasehold.worker import log_lines
from leasehold.worker.attempt import AttemptRunner
from leasehold.worker.claimer import Claimer
from leasehold.worker.crash_recovery import CrashRecovery, JournalFolder
from leasehold.worker.finisher import Finisher, Outbox
from leasehold.worker.lease import LeaseKeeper
from leasehold.worker.options import WorkerOptions
from leasehold.worker.runner import Runner, Slots
from leasehold.worker.statistics import Statistician, Tally

logger = logger_of(__name__)

_STUCK = 10.0
"""Seconds without an answer after which a part counts as stuck."""
_NO_DESCRIPTOR = "no descriptor is free for a connection: tasks leave files or sockets open, or have lowered the limit"
_TICK = 1.0
"""Seconds between two checks of the event loop."""

_STALLED = (
    "worker %s: its event loop has not turned for %.0f s (it is in %s; async tasks that run: %s), so no job is started"
    " or reported; await what the task waits for, or make it a plain def (executor='thread') or executor='process'"
)


class Loops:
    """The claimer, the finisher, upkeep and the keeper have a connection each: no lease waits behind a claim or report.

    `retire` is called when the worker has run enough jobs, `stalled`, in a thread, when the event loop stands still.
    """

    def __init__(
        self, worker_id: str, app: App, database: Database, options: WorkerOptions, *,
        retire: Callable[[str], None], stalled: Callable[[], object],
    ) -> None:  # fmt: skip
        self._worker_id, self._options = worker_id, options
        self.store, self.outage, self.links = database.store, Outage(), list[Link]()
        self._folder = JournalFolder(database.dsn, self.store.schema)
        self._tasks: list[asyncio.Task[None]] = []
        self.death: asyncio.Future[tuple[str, BaseException | None]] = asyncio.get_running_loop().create_future()
        """Which loop, or the keeper, has ended though it should not have, and of what."""
        self._ending = self.closed = False
        self._reserve = reserve = Reserve(partial(self.death.get_loop().call_soon_threadsafe, retire, _NO_DESCRIPTOR))
        prepare, shortest = app.settings.prepare, min(task.options.lease for task in app.tasks.values())

        def ports(name: str, patience: float = shortest / 3) -> Ports:
            name, failed = f"leasehold {name} {worker_id}", partial(log_lines.unreported, worker_id)
            link = Link(database.dsn, name=name, prepare=prepare, patience=patience, failed=failed, reserve=reserve)
            self.links.append(link)
            return Ports(worker_id, link, self.store, app.telemetry, self.outage)

        self.slots = slots = Slots(options.slots, options.prefetch, Outbox(), self._folder)
        self.stalls = LoopStalls(worker_id, slots.kinds_on_loop, stalled)
        self.keeper = keeper = LeaseKeeper(
            worker_id, database, slots.running, shortest=shortest, prepare=prepare, outage=self.outage, reserve=reserve
        )
        self.listener = Listener(database.dsn, schema=self.store.schema, name=f"leasehold listener {worker_id}")
        self._make_upkeep(ports("upkeep", max(shortest / 3, 5.0)))  # no lease depends on it, and it may have much to do
        self.runner = Runner(
            app.tasks, AttemptRunner(
                worker_id, self.store, keeper=keeper, hooks=app.hooks, telemetry=app.telemetry, options=options,
                hold_off=slots.hold_off,
            ),
            slots=slots, keeper=keeper, lost_leases=self.lost_leases, telemetry=app.telemetry,
            max_jobs=options.max_jobs, retire=retire,
        )  # fmt: skip
        self.claimer = Claimer(
            ports("claimer"), tasks=app.tasks, options=options, slots=slots, runner=self.runner, keeper=keeper,
            listener=self.listener, prober=self.prober,
        )  # fmt: skip
        self.finisher = Finisher(
            ports("finisher"), outbox=slots.outbox, keeper=keeper, tally=self._tally, written=slots.room_changed,
            retry=self.sweeper.wake, reported=self.runner.reported,
        )  # fmt: skip

    def _make_upkeep(self, ports: Ports) -> None:
        """Make the loops that share a connection, because no job waits for them."""
        self.upkeep_link = ports.link
        self.prober = Prober(ports.link, self.store, self.listener)
        self.sweeper = Sweeper(ports, listener=self.listener)
        self.scheduler = Scheduler(ports, listener=self.listener)
        self.crash_recovery = CrashRecovery(ports, folder=self._folder, found=self.slots.refresh_suspects)
        self.lost_leases = log_lines.LostLeases(ports)
        self._tally = Tally()
        self.statistician = Statistician(ports, tally=self._tally)

    def start(self) -> None:
        """Start every loop, the keeper of the leases first."""
        self.listener.on(QUEUE, self.claimer.wake)
        self.listener.on(DUE, self.sweeper.wake)
        self.listener.on(SCHEDULE, self.scheduler.wake)
        self.listener.on(CANCEL, self.runner.check_lease)
        # As many as run or wait for the answer to their reports: see `Slots.room`.
        entries = 2 * (self._options.slots + self._options.prefetch)
        self.runner.start(self._folder.open(self._worker_id, entries))
        self.keeper.start(self.runner.lose, partial(self._died, "LeaseKeeper"))
        self.stalls.start()
        for loop in (
            self.claimer, self.finisher, self.sweeper, self.scheduler, self.listener, self.prober, self.statistician,
            self.crash_recovery,
        ):  # fmt: skip
            task = asyncio.create_task(_without_exit(loop.run()), name=type(loop).__name__)
            task.add_done_callback(self._loop_ended)
            self._tasks.append(task)

    def _loop_ended(self, loop: asyncio.Task[None]) -> None:
        self._died(loop.get_name(), None if loop.cancelled() else loop.exception())

    def _died(self, part: str, error: BaseException | None) -> None:
        if not self._ending and not self.death.done():
            self.death.set_result((part, error))

    def stuck(self) -> dict[str, str]:
        """Return the parts that a job needs and that have not moved lately, and what they wait for."""
        now = monotonic()
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
        if (since := self.stalls.since) is not None:
            stuck["event loop"] = f"it has not turned for {now - since:.0f} s"
        return stuck

    async def shut_down(self, grace_begun: asyncio.Event, hurry: asyncio.Event) -> int:
        """Stop claiming; finish or release what runs; report it all; only then end the leases.

        What runs has no limit before the grace period has begun. Return the number of jobs whose tasks do not end.
        """
        running, grace = len(self.slots.running), self._options.grace
        # Three of the five seconds after the grace period are for the steps after the reports.
        overdue = asyncio.create_task(_after(grace_begun, grace + 2))
        limit = f"they have {grace:g} s" if grace_begun.is_set() else "they may take as long as they need"
        log_lines.logger.info("worker %s drains: %d jobs run, %s", self._worker_id, running, limit)
        await self.claimer.stop()
        firing = asyncio.create_task(self.scheduler.stop())
        left_behind = await self.runner.drain(grace, grace_begun, hurry)
        draining = asyncio.create_task(self.finisher.drain())  # with the database away reports end with the leases
        await asyncio.wait([draining, overdue], timeout=60, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([draining], timeout=1)  # though the tasks have used up all the time
        if draining.done():
            draining.result()
        else:
            logger.critical("%d reports were not taken; their jobs are left to their leases", self.slots.outbox.backlog)
        await cancel(draining, overdue)
        # A schedule that is not fired by then is fired by another worker when the claim expires.
        await asyncio.wait([firing], timeout=0 if self.slots.outbox.backlog else 2)
        firing.cancel()
        self.keeper.stop()
        await _quietly(self._unregister, logging.WARNING)
        await self._end_loops()
        await self.close()
        return left_behind

    async def abandon(self, *, died: bool) -> None:
        """Renew nothing more, stop what runs, and end, in bounded time whatever the loops do."""
        self._ending = True
        self.keeper.stop()
        self.runner.abandon(died=died)
        await _quietly(self._end_loops)
        await _quietly(self.close)

    async def _end_loops(self) -> None:
        self._ending = True
        await cancel(*self._tasks)
        await self.finisher.close()

    async def _unregister(self) -> None:
        await self.statistician.round()
        await self.upkeep_link.run(self.store.stop_worker(self._worker_id))

    async def close(self) -> None:
        """Close the connections, and the journal."""
        self.closed = True
        self.stalls.stop()
        await self.lost_leases.close()
        self.runner.close(orderly=not self.death.done())
        for link in self.links:
            await link.close()
        self._reserve.free()


async def _without_exit(loop: Awaitable[None]) -> None:
    """Run a loop out of which no SystemExit comes: it would end the event loop at once, with another code."""
    try:
        await loop
    except (SystemExit, KeyboardInterrupt) as end:
        raise RuntimeError(f"{type(end).__name__} came out of it: {end}") from end


async def _after(event: asyncio.Event, seconds: float) -> None:
    await event.wait()
    await asyncio.sleep(seconds)


async def _quietly(step: Callable[[], Awaitable[object]], level: int = logging.DEBUG) -> None:
    try:
        async with asyncio.timeout(2):
            await step()
    except Exception as error:  # noqa: BLE001 (only information is lost; leases are what counts)
        logger.log(level, "while the worker stops: %s", str(error) or type(error).__name__)


class LoopStalls:
    """Detects, from a thread, that a task blocks the event loop; leases are renewed meanwhile, nothing else shows it.

    `kinds`, of the tasks on the loop, and `stalled` are called in that thread.
    """

    def __init__(self, worker: str, kinds: Callable[[], Iterable[str]], stalled: Callable[[], object]) -> None:
        self._worker = worker
        self._kinds = kinds
        self._stalled = stalled
        self._ended = threading.Event()
        self.since: float | None = None
        """Since when it stands, by the monotonic clock; None: it turns."""

    def start(self) -> None:
        """Watch the running loop."""
        loop, ident = asyncio.get_running_loop(), threading.get_ident()
        threading.Thread(target=self._watch, args=(loop, ident), name="leasehold-loop", daemon=True).start()

    def stop(self) -> None:
        """End the watch."""
        self._ended.set()

    def _watch(self, loop: asyncio.AbstractEventLoop, ident: int) -> None:
        while not self._ended.wait(_TICK):
            turned, asked = threading.Event(), monotonic()
            try:
                loop.call_soon_threadsafe(turned.set)
            except RuntimeError:  # the loop is closed
                return
            # Counted, not one long wait: if this thread does not run either, the whole process stands.
            if any(turned.wait(_TICK) for _ in range(3)):
                continue
            self.since = asked
            try:
                kinds = log_lines.names(self._kinds()) or "none"
                logger.warning(_STALLED, self._worker, monotonic() - asked, _position(ident), kinds)
                self._stalled()
            except Exception as error:  # noqa: BLE001 (only information: this thread goes on)
                logger.debug("the stall could not be reported: %s", error)
            while not turned.wait(_TICK) and not self._ended.is_set():
                pass
            self.since = None
            logger.warning("worker %s: its event loop goes on after %.0f s", self._worker, monotonic() - asked)


def _position(ident: int) -> str:
    """Return the function and line that a thread is in."""
    frame = sys._current_frames().get(ident)  # noqa: SLF001 (documented)
    if frame is None:
        return "an unknown place"
    code = frame.f_code
    return one_line(f"{code.co_name}, {code.co_filename}:{frame.f_lineno}", 200)
