"""Keeps a number of worker processes running, and passes signals on to them."""

import asyncio
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from leasehold._aio import cancel, first_of, within
from leasehold.db.connections.link import Backoff
from leasehold.errors import ConfigError
from leasehold.supervise import RETIRED
from leasehold.supervise.report_targets import EVERY, HealthFile, Systemd
from leasehold.supervise.source_watcher import SourceWatcher
from leasehold.supervise.worker_process import WELL, WorkerProcess

PATIENCE = 5.0
"""Seconds beyond the grace period after which a worker that has not ended is killed."""
_STALE = 5.0
"""Seconds of a worker's silence, several beats, after which it counts as hung."""
_USAGE, _UNAVAILABLE, _SCHEMA = 2, 3, 4
"""Exit codes of the command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorOptions:
    """What is to be supervised, and how."""

    command: Sequence[str]
    """Starts one worker."""
    processes: int = 1
    grace: float = 30.0
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    health: HealthFile | None = None
    watcher: SourceWatcher | None = None
    """Restart the workers when a source changes."""
    farewell: str = "running jobs have {grace:g} s; once more to give them back now"
    """Logged when they are asked to stop."""


class _Replica:
    """One of the worker processes that are kept running: the present one, or its successor on its way."""

    def __init__(self) -> None:
        self.child: WorkerProcess | None = None
        self.retiring: WorkerProcess | None = None
        """The one before, which finishes its jobs, or has: while it does, its successor must not retire as well."""
        self.swapped = asyncio.Event()
        """Set when another process has taken its place."""
        self.backoff = Backoff(first=0.2, longest=30.0)
        """Before the next start, after processes in a row that died of how they were started, as it seems."""


class Supervisor:
    """`run()` ends after SIGTERM or SIGINT, or when a worker cannot be started as it is; it returns the exit code.

    SIGHUP replaces the workers, one after the other. A second SIGTERM or SIGINT has the jobs released at once.
    """

    def __init__(self, options: SupervisorOptions, *, systemd: Systemd, say: Callable[[int, str], None]) -> None:
        self._options = options
        self._systemd = systemd
        self._say, self._warn = partial(say, logging.INFO), partial(say, logging.WARNING)
        self._live: set[WorkerProcess] = set()
        self._replicas = [_Replica() for _ in range(options.processes)]
        self._stopping = asyncio.Event()
        self._roll_wanted = asyncio.Event()
        self._moved = asyncio.Event()
        self._deadline = math.inf
        self._code = 0
        self._announced = False
        self._ever_ready = False
        """Whether any worker has ever been ready: then the settings and the app were right once."""
        self._gate = asyncio.Event()
        """Set when one worker has loaded the app: what is wrong with it is logged once, not by every process."""
        self._changed = asyncio.Event()
        """Set when a source has changed; then there is a new one."""

    async def run(self) -> int:
        """Supervise until all workers have ended."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        # A developer who closes the terminal is done.
        loop.add_signal_handler(signal.SIGHUP, self._stop if self._options.watcher else self._roll_wanted.set)
        self._write_health(first=True)
        tending = asyncio.create_task(self._tend())
        loops = [asyncio.create_task(self._keep(replica)) for replica in self._replicas]
        loops += [asyncio.create_task(self._roll()), tending]
        if self._options.watcher is not None:
            loops.append(asyncio.create_task(self._reload(self._options.watcher)))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            done, _ = await asyncio.wait([stopping, *loops], return_when=asyncio.FIRST_COMPLETED)
            for ended in done - {stopping}:
                ended.result()  # none ends but by a defect
        finally:
            self._stopping.set()
            self._systemd.notify("STOPPING=1")
            await cancel(stopping, *(task for task in loops if task is not tending))
            await self._wind_down()
            await cancel(tending)
            if self._options.health is not None:
                self._options.health.remove()
        return self._code

    # -- one replica

    async def _keep(self, replica: _Replica) -> None:
        """Start a worker, and another when that retires or has died, until cancelled."""
        first = replica is self._replicas[0]
        while True:
            if replica.child is None:
                if not first:
                    await self._gate.wait()
                replica.child = await self._launch(replica)
            child = replica.child
            if first:
                await first_of(child.loaded.wait(), child.ended.wait())
                if child.loaded.is_set():
                    self._gate.set()
            replica.swapped.clear()
            if replica.child is child:
                await first_of(child.ended.wait(), child.retiring.wait(), replica.swapped.wait())
            if replica.child is child:
                replica.child = None
                if replica.retiring not in self._live:  # else this one has used too much memory, and ends soon
                    replica.retiring = child
                await self._restart_pause(replica, child)

    async def _replace(self, replica: _Replica) -> bool:
        """Put a new worker here: the old one is asked to stop when the new one is ready. False: that failed."""
        if replica.child is None:
            return True  # the one on its way is new
        fresh = await self._launch(replica)
        await first_of(fresh.ready.wait(), fresh.ended.wait())
        if fresh.ended.is_set():
            self._warn(f"the new worker {fresh.pid} {fresh.how} before it was ready")
            return False
        old, replica.child = replica.child, fresh
        replica.swapped.set()
        if old is not None:
            await self._dismiss(old)
        return True

    async def _launch(self, replica: _Replica) -> WorkerProcess:
        while True:
            try:
                # Nothing can come between its start and our knowing it.
                before = replica.retiring if replica.retiring in self._live else None
                child = WorkerProcess(self._options.command, self._options.env, self._reported, before)
            except OSError as error:
                pause = replica.backoff.pause()
                self._warn(f"no worker can be started ({error.strerror}); next try in {pause:.1f} s")
                await asyncio.sleep(pause)
            else:
                self._live.add(child)
                return child

    async def _dismiss(self, child: WorkerProcess, *, hurry_after: float | None = None) -> None:
        """Ask a worker to stop; return when it has."""
        child.ask()
        if hurry_after is not None and not await within(hurry_after, child.ended):
            child.hurry()
        if not await within((self._options.grace if hurry_after is None else 0) + PATIENCE, child.ended):
            self._warn(f"worker {child.pid} does not stop; killing it")
            child.kill()
            await child.ended.wait()

    async def _restart_pause(self, replica: _Replica, child: WorkerProcess) -> None:
        """Return when the successor of this one is to be started."""
        if child.leaving:
            return
        retires = child.retiring.is_set() or child.code == RETIRED
        if retires and child.report and (jobs := child.report["finished"]):
            self._say(f"worker {child.pid} retires after {jobs} jobs; another starts now")
            replica.backoff.reset()
            return
        of_settings = child.code in {_USAGE, _SCHEMA}
        of_source = not child.ready.is_set() and child.code > 0 and child.code != _UNAVAILABLE
        if self._options.watcher and of_source and (self._ever_ready or not of_settings):
            self._warn(f"worker {child.pid} {child.how}; waiting for a change")
            await self._changed.wait()
            return
        if of_settings or (child.code == _UNAVAILABLE and not self._ever_ready):
            # Another start would end the same way: stop, and end like that worker.
            self._code = self._code or child.code
            self._stopping.set()
            await asyncio.Event().wait()
        if time.monotonic() - child.born >= 10:  # it did not die of how it was started
            replica.backoff.reset()
        pause = replica.backoff.pause()
        how = child.how if child.ended.is_set() else "retires and has run no job to its end"
        (self._say if child.code in WELL else self._warn)(f"worker {child.pid} {how}; another starts in {pause:.1f} s")
        await within(pause, self._changed)

    # -- signals

    def _stop(self) -> None:
        if not self._stopping.is_set():
            self._say("stopping: " + self._options.farewell.format(grace=self._options.grace))
            self._stopping.set()
            return
        for child in self._live:
            child.hurry()
        self._deadline = min(self._deadline, time.monotonic() + 1.2)  # a worker ends itself before, if it can
        self._moved.set()

    def _reap(self) -> None:
        for child in [child for child in self._live if child.reap()]:
            self._live.discard(child)
            for other in self._live:
                if other.predecessor is child:
                    other.let_retire()
            if not self._stopping.is_set():
                if child.retiring.is_set() and child.code not in WELL:  # none waits for its end
                    self._warn(f"worker {child.pid}, which was retiring, {child.how}")
            elif child.ready.is_set() and child.code not in WELL:
                self._warn(f"worker {child.pid} {child.how}")
                self._code = self._code or 1
        self._moved.set()

    def _reported(self) -> None:
        self._ever_ready = self._ever_ready or any(child.ready.is_set() for child in self._live)
        if not self._announced and all(replica.child and replica.child.ready.is_set() for replica in self._replicas):
            self._announced = True
            self._systemd.notify("READY=1")

    # -- loops

    async def _roll(self) -> None:
        while True:
            await self._roll_wanted.wait()
            self._roll_wanted.clear()
            self._say("replacing the workers, one after the other")
            for replica in self._replicas:
                if not await self._replace(replica):
                    self._warn("the other workers stay as they are")
                    break
            else:
                self._say("all workers have been replaced")

    async def _reload(self, watcher: SourceWatcher) -> None:
        async for files in watcher.changes():
            names = ", ".join(Path(file).name for file in files[:3]) + (" …" if len(files) > 3 else "")
            self._say(f"{names} changed: starting the workers anew")
            self._gate.clear()
            self._changed.set()
            self._changed = asyncio.Event()
            leaving = list(self._live)
            for child in leaving:
                child.leaving = True
            await asyncio.gather(*(self._dismiss(child, hurry_after=2.0) for child in leaving))

    async def _tend(self) -> None:
        """Ping systemd, end workers that systemd would take for hung, and refresh the health file."""
        watchdog = self._systemd.watchdog
        pause = EVERY if watchdog is None else min(EVERY, watchdog / 2)
        written = time.monotonic()
        while True:
            if watchdog is not None:
                self._systemd.notify("WATCHDOG=1")
                for child in self._live:
                    if child.loaded.is_set() and child.silence > max(watchdog, _STALE):
                        self._warn(f"worker {child.pid} has said nothing for {child.silence:.1f} s; ending it")
                        child.abort()
            if time.monotonic() - written >= EVERY:
                written = time.monotonic()
                self._write_health()
            await asyncio.sleep(pause)

    async def _wind_down(self) -> None:
        """End every worker, in good order if it can be."""
        self._deadline = min(self._deadline, time.monotonic() + self._options.grace + PATIENCE)
        for child in self._live:
            child.ask()
        self._write_health()
        while self._live:
            self._moved.clear()
            if not await within(self._deadline - time.monotonic(), self._moved):
                self._deadline = time.monotonic() + 1
                for child in self._live:
                    self._warn(f"worker {child.pid} does not stop; killing it")
                    child.kill()

    # -- health

    def _write_health(self, *, first: bool = False) -> None:
        """Write one file for all; not while a worker that should report is silent: then the file grows old."""
        if self._options.health is None or any(c.loaded.is_set() and c.silence > _STALE for c in self._live):
            return
        try:
            self._options.health.write(self._health())
        except ConfigError as error:
            if first:
                raise
            self._warn(str(error))

    def _health(self) -> dict[str, Any]:
        now = time.time()
        unheard = {"worker": None, "state": "starting", "running": 0, "slots": 0, "finished": 0, "at": now}
        workers = [{**unheard, "pid": c.pid, **(c.report or {})} for c in sorted(self._live, key=lambda c: c.pid)]
        states = {worker["state"] for worker in workers}
        order = ("working", "stuck", "waiting for the database", "starting", "retiring", "draining")
        return {
            "worker": None,
            "pid": os.getpid(),
            "state": "draining" if self._stopping.is_set() else next((s for s in order if s in states), "starting"),
            **{name: sum(worker[name] for worker in workers) for name in ("running", "slots", "finished")},
            "at": now,
            "workers": workers,
        }
