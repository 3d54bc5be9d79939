"""One of the supervisor's places: there is always a worker in it, or one on its way."""

import asyncio
import random
from typing import TYPE_CHECKING, Any

from leasehold.supervise import RETIRED
from leasehold.supervise.child import Child

if TYPE_CHECKING:
    from leasehold.supervise.supervisor import Supervisor

STEADY = 10.0
"""A worker that lived for so many seconds did not die of how it was started."""

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 30.0

_USAGE, _UNAVAILABLE, _SCHEMA = 2, 3, 4
"""Exit codes of the command line."""


class Place:
    """Keeps one worker process going."""

    def __init__(self, supervisor: "Supervisor", *, first: bool) -> None:
        self._supervisor = supervisor
        self._first = first
        self._swapped = asyncio.Event()
        self._quick_deaths = 0
        self.child: Child | None = None

    async def run(self) -> None:
        """Start a worker, and another when that has died, until cancelled."""
        while True:
            if self.child is None:
                if not self._first:
                    await self._supervisor.gate.wait()
                self.child = await self._launch()
            child = self.child
            if self._first:
                await _first_of(child.loaded, child.ended)
                if child.loaded.is_set():
                    self._supervisor.gate.set()
            self._swapped.clear()
            if self.child is child:
                await _first_of(child.ended, self._swapped)
            if self.child is child:
                self.child = None
                await self._mourn(child)

    async def replace(self) -> bool:
        """Put a new worker here: the old one is told to stop when the new one is ready. False: that failed."""
        if self.child is None:
            return True  # the one on its way is new
        fresh = await self._launch()
        await _first_of(fresh.ready, fresh.ended)
        if fresh.ended.is_set():
            self._supervisor.say(f"the new worker {fresh.pid} {fresh.how} before it was ready")
            return False
        old, self.child = self.child, fresh
        self._swapped.set()
        if old is not None:
            await self._supervisor.dismiss(old)
        return True

    async def restart(self, grace: float) -> None:
        """Have the worker replaced by another, soon."""
        if self.child is not None:
            self.child.leaving = True
            await self._supervisor.dismiss(self.child, hurry_after=grace)

    async def _launch(self) -> Child:
        while True:
            try:
                return self._supervisor.launch()
            except OSError as error:
                pause = self._next_pause()
                self._supervisor.say(f"no worker can be started ({error.strerror}); next try in {pause:.1f} s")
                await asyncio.sleep(pause)

    async def _mourn(self, child: Child) -> None:
        """Return when the next one is to be started."""
        supervisor = self._supervisor
        if child.leaving:
            return
        if child.code == RETIRED and child.finished:
            supervisor.say(f"worker {child.pid} has retired after {child.finished} jobs; another starts now")
            self._quick_deaths = 0
            return
        if supervisor.reloads and self._cured_by_a_change(child):
            supervisor.say(f"worker {child.pid} {child.how}; waiting for a change")
            await supervisor.changed.wait()
            return
        if child.code in {_USAGE, _SCHEMA} or (child.code == _UNAVAILABLE and not supervisor.ever_ready):
            supervisor.give_up(child.code)
            await asyncio.Event().wait()
        if child.age >= STEADY:
            self._quick_deaths = 0
        pause = self._next_pause()
        supervisor.say(f"worker {child.pid} {child.how}; another starts in {pause:.1f} s")
        try:
            async with asyncio.timeout(pause):
                await supervisor.changed.wait()
        except TimeoutError:
            pass

    def _cured_by_a_change(self, child: Child) -> bool:
        if child.ready.is_set() or child.code <= 0 or child.code == _UNAVAILABLE:
            return False
        return child.code not in {_USAGE, _SCHEMA} or self._supervisor.ever_ready

    def _next_pause(self) -> float:
        pause = min(_FIRST_PAUSE * 2.0**self._quick_deaths, _LONGEST_PAUSE)
        self._quick_deaths = min(self._quick_deaths + 1, 20)
        return pause * random.uniform(0.75, 1.0)  # noqa: S311 (spread, not secrecy)


async def _first_of(*events: asyncio.Event) -> None:
    waits: list[asyncio.Task[Any]] = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
