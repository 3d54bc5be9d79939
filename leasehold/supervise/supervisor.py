"""Keeps a number of worker processes going, and passes on what it is told."""

import asyncio
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leasehold.errors import ConfigError
from leasehold.supervise.child import WELL, Child
from leasehold.supervise.health import EVERY, HealthFile
from leasehold.supervise.place import Place
from leasehold.supervise.reloader import Watcher
from leasehold.supervise.systemd import Systemd

PATIENCE = 5.0
"""Seconds beyond the grace period after which a worker that has not ended is killed."""

HURRY = 1.2
"""Seconds after a second signal after which a worker that has not ended is killed. It ends itself before, if it can."""

RELOAD_GRACE = 2.0
"""Seconds that running jobs get to finish when a source has changed."""

_STALE = 5.0
"""Seconds of a worker's silence, several beats, after which it counts as hung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorOptions:
    """What is to be supervised, and how."""

    command: Sequence[str]
    """Starts one worker."""
    processes: int = 1
    grace: float = 30.0
    """The workers' grace period."""
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    health: HealthFile | None = None
    watcher: Watcher | None = None
    """Restart the workers when a source changes."""
    farewell: str = "running jobs have {grace:g} s; once more to give them back now"
    """What is said when they are told to stop."""


class Supervisor:
    """`run()` ends after SIGTERM or SIGINT, or when a worker cannot be started as it is; it gives the exit code.

    SIGHUP replaces the workers, one after the other. A second SIGTERM or SIGINT has the jobs given back at once.
    """

    def __init__(self, options: SupervisorOptions, *, systemd: Systemd, say: Callable[[str], None]) -> None:
        self._options = options
        self._systemd = systemd
        self._live: set[Child] = set()
        self._places = [Place(self, first=number == 0) for number in range(options.processes)]
        self._stopping = asyncio.Event()
        self._roll_wanted = asyncio.Event()
        self._moved = asyncio.Event()
        self._deadline = math.inf
        self._code = 0
        self._announced = False
        self.say = say
        self.ever_ready = False
        """Whether any worker has ever been ready: then the settings and the app were right once."""
        self.gate = asyncio.Event()
        """Set when one worker has loaded the app: what is wrong with it is said once, not by every process."""
        self.changed = asyncio.Event()
        """Set when a source has changed; then there is a new one."""

    @property
    def reloads(self) -> bool:
        """Whether sources are watched."""
        return self._options.watcher is not None

    async def run(self) -> int:
        """Supervise."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told_to_stop)
        # A developer who closes the terminal is done.
        loop.add_signal_handler(signal.SIGHUP, self._told_to_stop if self.reloads else self._roll_wanted.set)
        self._write_health(first=True)
        tending = asyncio.create_task(self._tend())
        loops = [asyncio.create_task(place.run()) for place in self._places]
        loops += [asyncio.create_task(self._roll()), asyncio.create_task(self._reload()), tending]
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            done, _ = await asyncio.wait([stopping, *loops], return_when=asyncio.FIRST_COMPLETED)
            for ended in done - {stopping}:
                ended.result()  # none ends but by a defect
        finally:
            self._stopping.set()
            self._systemd.stopping()
            await _cancel(stopping, *(task for task in loops if task is not tending))
            await self._wind_down()
            await _cancel(tending)
            if self._options.health is not None:
                self._options.health.remove()
        return self._code

    # -- for the places

    def launch(self) -> Child:
        """Start a worker process. Not a coroutine: nothing can come between its start and our knowing it."""
        child = Child(self._options.command, self._options.env, self._heard)
        self._live.add(child)
        return child

    async def dismiss(self, child: Child, *, hurry_after: float | None = None) -> None:
        """Ask a worker to stop; return when it has."""
        child.ask()
        if hurry_after is not None and not await _within(hurry_after, child.ended):
            child.hurry()
        if not await _within((self._options.grace if hurry_after is None else 0) + PATIENCE, child.ended):
            self.say(f"worker {child.pid} does not stop; killing it")
            child.kill()
            await child.ended.wait()

    def give_up(self, code: int) -> None:
        """Another start would end the same way: stop, and end like that worker."""
        self._code = self._code or code
        self._stopping.set()

    # -- signals

    def _told_to_stop(self) -> None:
        if not self._stopping.is_set():
            self.say("stopping: " + self._options.farewell.format(grace=self._options.grace))
            self._stopping.set()
            return
        for child in self._live:
            child.hurry()
        self._deadline = min(self._deadline, time.monotonic() + HURRY)
        self._moved.set()

    def _reap(self) -> None:
        for child in [child for child in self._live if child.reap()]:
            self._live.discard(child)
            if self._stopping.is_set() and child.ready.is_set() and child.code not in WELL:
                self.say(f"worker {child.pid} {child.how}")
                self._code = self._code or 1
        self._moved.set()

    def _heard(self) -> None:
        self.ever_ready = self.ever_ready or any(child.ready.is_set() for child in self._live)
        if not self._announced and all(place.child and place.child.ready.is_set() for place in self._places):
            self._announced = True
            self._systemd.ready()

    # -- loops

    async def _roll(self) -> None:
        while True:
            await self._roll_wanted.wait()
            self._roll_wanted.clear()
            self.say("replacing the workers, one after the other")
            for place in self._places:
                if not await place.replace():
                    self.say("the other workers stay as they are")
                    break
            else:
                self.say("all workers have been replaced")

    async def _reload(self) -> None:
        if self._options.watcher is None:
            await asyncio.Event().wait()
            return
        async for files in self._options.watcher.changes():
            names = ", ".join(Path(file).name for file in files[:3]) + (" …" if len(files) > 3 else "")
            self.say(f"{names} changed: starting the workers anew")
            self.gate.clear()
            self.changed.set()
            self.changed = asyncio.Event()
            await asyncio.gather(*(place.restart(RELOAD_GRACE) for place in self._places))

    async def _tend(self) -> None:
        """Say that we are well, and end workers that are not, if systemd would."""
        watchdog = self._systemd.watchdog
        pause = EVERY if watchdog is None else min(EVERY, watchdog / 2)
        written = time.monotonic()
        while True:
            if watchdog is not None:
                self._systemd.alive()
                for child in self._live:
                    if child.ready.is_set() and child.silence > max(watchdog, _STALE):
                        self.say(f"worker {child.pid} has said nothing for {child.silence:.1f} s; ending it")
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
            if not await _within(self._deadline - time.monotonic(), self._moved):
                self._deadline = time.monotonic() + 1
                for child in self._live:
                    self.say(f"worker {child.pid} does not stop; killing it")
                    child.kill()

    # -- health

    def _write_health(self, *, first: bool = False) -> None:
        """One file for all; not while a worker that should speak is silent: then the file grows old."""
        if self._options.health is None or any(c.ready.is_set() and c.silence > _STALE for c in self._live):
            return
        try:
            self._options.health.write(self._health())
        except ConfigError as error:
            if first:
                raise
            self.say(str(error))

    def _health(self) -> dict[str, Any]:
        now = time.time()
        unheard = {"worker": None, "state": "starting", "running": 0, "slots": 0, "finished": 0, "at": now}
        workers = [{**unheard, "pid": c.pid, **(c.word or {})} for c in sorted(self._live, key=lambda c: c.pid)]
        states = {worker["state"] for worker in workers}
        order = ("working", "stuck", "waiting for the database", "starting", "draining")
        known = [state for state in order if state in states]
        return {
            "worker": None,
            "pid": os.getpid(),
            "state": "draining" if self._stopping.is_set() else [*known, "starting"][0],
            **{name: sum(worker[name] for worker in workers) for name in ("running", "slots", "finished")},
            "at": now,
            "workers": workers,
        }


async def _within(seconds: float, event: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
