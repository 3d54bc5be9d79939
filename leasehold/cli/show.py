"""A demo that runs: its processes, its traffic, its bookkeeping, and what one sees of it."""

import asyncio
import os
import signal
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from leasehold.cli.console import say
from leasehold.cli.keys import Keys
from leasehold.cli.look import Look, look, picture
from leasehold.cli.processes import Part
from leasehold.db.pool import Database
from leasehold.demo.controls import VARIABLE, Controls, Standing, Worker, born
from leasehold.demo.ledger import Ledger
from leasehold.demo.tasks import app
from leasehold.demo.traffic import run_traffic
from leasehold.errors import DatabaseUnavailable, LeaseholdError, NotPermitted

if TYPE_CHECKING:
    from leasehold.cli.demo import Plan

_APP = "leasehold.demo.tasks:app"
_GRACE = 3
"""Seconds that running jobs get when the demo ends."""

_ABSENT = 3.0
"""Seconds until a killed worker is replaced: time to see that the others go on."""

_TICK = 0.5
_VERIFY_EVERY = 3.0
_LINE_EVERY = 2.0


class Show:
    """`run()` ends after SIGINT or SIGTERM, after the time that was given, or with q."""

    def __init__(self, plan: "Plan", file: Path) -> None:
        self._plan = plan
        self._controls = Controls(file)
        self.url = f"http://127.0.0.1:{plan.port}/dashboard/"
        arguments = ["worker", _APP, "--slots", str(plan.slots), "--grace", str(_GRACE)]
        self._workers = [Part("worker", arguments, tell=self._hear, pause=_ABSENT) for _ in range(plan.workers)]
        server = ["serve", _APP, "--port", str(plan.port)]
        self._server = Part("API server", server, tell=self._hear, env={VARIABLE: str(file)})
        self._ledger = Ledger()
        self._orphans: set[UUID] = set()
        self._pids: set[int] = set()
        self._killed: set[str] = set()
        self._broken: dict[str, int] = {}
        self._recovered = 0
        self._owners: dict[UUID, str | None] = {}
        """Which worker ran which job at the last look."""
        self._given_back: set[UUID] = set()
        """Jobs of dead workers that have not been seen running since."""
        self._news = ""
        self._live: Live | None = None
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Run the demo."""
        self._controls.path.parent.mkdir(parents=True, exist_ok=True)
        self._take_signals()
        database = await app.adatabase()
        with suppress(NotPermitted):
            await database.arun(database.store.set_limit("queue", "reports", 4))
        say(f"the dashboard is on {self.url}; to kill a worker: its button, or `leasehold demo kill`")
        loops = [asyncio.create_task(part.run()) for part in (*self._workers, self._server)]
        loops.append(asyncio.create_task(self._traffic()))
        loops.append(asyncio.create_task(self._watch(database)))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            done, _ = await asyncio.wait([stopping, *loops], return_when=asyncio.FIRST_COMPLETED)
            for ended in done - {stopping}:
                ended.result()
        finally:
            await self._end([stopping, *loops])
        say(self._line())

    # -- its end

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._told)
        if self._plan.seconds:
            loop.call_later(self._plan.seconds, self._stopping.set)

    def _told(self) -> None:
        if self._stopping.is_set():
            for part in (*self._workers, self._server):
                part.kill()
        else:
            self._stopping.set()
            say(f"stopping: running jobs have {_GRACE} s; once more to end at once")

    async def _end(self, loops: "list[asyncio.Task[Any]]") -> None:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await asyncio.gather(*(part.stop() for part in (*self._workers, self._server)))
        self._controls.remove()
        await app.aclose()

    # -- what goes on

    async def _traffic(self) -> None:
        await run_traffic(jobs_per_second=self._plan.rate, acknowledged=lambda job: self._ledger.promise(job.id))

    async def _watch(self, database: Database) -> None:
        verified = spoken = 0.0
        with ExitStack() as stack:
            self._open(stack)
            while True:
                try:
                    seen = await asyncio.to_thread(look, database)
                    await self._ledger.look(database)
                    if time.monotonic() - verified >= _VERIFY_EVERY:
                        verified = time.monotonic()
                        laws = await database.arun(database.store.verify())
                        self._broken = {law.name: law.violations for law in laws if not law.ok}
                except DatabaseUnavailable as error:
                    self._hear(f"the database does not answer: {error.args[0]}")
                else:
                    self._note(seen)
                    if self._live is not None:
                        self._draw(self._live, seen)
                if self._live is None and time.monotonic() - spoken >= _LINE_EVERY:
                    spoken = time.monotonic()
                    say(self._line())
                await asyncio.sleep(_TICK)

    def _note(self, seen: Look) -> None:
        """Keep the books: whose jobs have nobody any more, and which of these have moved on."""
        host = socket.gethostname()
        live = {part.pid for part in self._workers if part.pid is not None}
        self._pids |= live
        self._killed = {w.id for w in seen.workers if w.host == host and w.pid in self._pids - live}
        owners = {job.id: job.lease_owner for job in seen.running}
        held = {job for job, owner in owners.items() if owner in self._killed}
        self._recovered += len(self._orphans - held)
        # A neighbour gives a dead worker's jobs back at once: often they are gone before the first look.
        gone = {job for job, owner in self._owners.items() if owner in self._killed} - self._orphans
        self._given_back = (self._given_back | gone) - held
        back = {job for job in self._given_back if job in owners}
        self._recovered += len(back)
        self._given_back -= back
        self._orphans, self._owners = held, owners
        known = {w.pid: (w.id, w.running) for w in seen.workers if w.host == host and w.live}
        rows = [(pid, *known.get(pid, ("", 0))) for pid in sorted(live)]
        workers = [Worker(pid=pid, born=born(pid), name=name, running=running) for pid, name, running in rows]
        mine = os.getpid()
        self._controls.write(
            Standing(pid=mine, born=born(mine), url=self.url, workers=workers, scoreboard=self._scoreboard())
        )

    def _scoreboard(self) -> dict[str, Any]:
        ledger = self._ledger
        return {
            "jobs lost": len(ledger.lost) + self._broken.get("lost_jobs", 0),
            "acknowledged": ledger.acknowledged,
            "done": ledger.done,
            "dead": ledger.dead,
            "kills": sum(part.kills for part in self._workers),
            "recovered": self._recovered,
            "recovering": len(self._orphans),
            "workers": sum(part.pid is not None for part in self._workers),
        }

    # -- what one sees

    def _hear(self, news: str) -> None:
        self._news = news
        if self._live is None:
            say(news)

    def _line(self) -> str:
        figures = " · ".join(f"{name} {value:,}" for name, value in self._scoreboard().items())
        broken = f" · BROKEN: {', '.join(self._broken)}" if self._broken else ""
        return f"{figures}{broken} · {self.url}"

    def _open(self, stack: ExitStack) -> None:
        """A picture and keys, on a terminal."""
        console = Console(stderr=True)
        if not console.is_terminal:
            return
        keys = stack.enter_context(Keys())
        if keys.descriptor is not None:
            loop = asyncio.get_running_loop()
            loop.add_reader(keys.descriptor, lambda: self._pressed(keys.read()))
            stack.callback(loop.remove_reader, keys.descriptor)
        self._live = stack.enter_context(Live(console=console, screen=True, auto_refresh=False))
        stack.callback(self._close)

    def _close(self) -> None:
        self._live = None

    def _pressed(self, keys: str) -> None:
        if "q" in keys.lower():
            self._stopping.set()
        if "k" in keys.lower():
            try:
                killed = self._controls.kill()
                self._news = f"killed the worker {killed['pid']}: its leases expire within seconds"
            except LeaseholdError as problem:
                self._news = str(problem)

    def _draw(self, live: Live, seen: Look) -> None:
        board = self._scoreboard()
        lost = board["jobs lost"]
        top = Text(no_wrap=True, overflow="ellipsis")
        top.append(f" jobs lost {lost} ", style="bold white on red" if lost or self._broken else "bold black on green")
        top.append("  " + "  ".join(f"{name} {value:,}" for name, value in board.items() if name != "jobs lost"))
        keys = Text(f"k kills a worker · q ends · {self.url}", style="dim", no_wrap=True, overflow="ellipsis")
        news = Text(self._news.partition("\n")[0], style="yellow", no_wrap=True, overflow="ellipsis")
        header: list[RenderableType] = [top, keys, news, Text()]
        live.update(picture(seen, height=live.console.height, header=header, killed=self._killed), refresh=True)
