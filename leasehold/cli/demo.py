"""`leasehold demo`: traffic, failures, three workers that can be killed, and a screen that keeps score."""

import asyncio
import os
import signal
import socket
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text
from typer import Context, Option

from leasehold import logs
from leasehold._locate import located
from leasehold.cli.console import Keys, answer, say, show_table
from leasehold.cli.options import AsJson, Commands, Dsn, Schema
from leasehold.cli.processes import Part, free_port, run_parts
from leasehold.cli.running import Seconds, load_app, run_async
from leasehold.cli.serve import PORT, Address, serve_here
from leasehold.cli.top import Snapshot, picture, take_snapshot
from leasehold.config import Settings
from leasehold.db.database import Database
from leasehold.db.migrations.migrate import migrate
from leasehold.demo.controls import Controls, DemoWorker, Standing, born
from leasehold.demo.ledger import Ledger
from leasehold.errors import ConfigError, DatabaseUnavailable, LeaseholdError, NotPermitted
from leasehold.supervise.report_targets import SupervisorPipe

commands = Commands(name="demo", help="Traffic, failures, workers that are killed, and no job lost.")

_APP = "leasehold.demo.tasks:app"
_GRACE = 3
"""Seconds that running jobs get when the demo ends."""


@commands.callback(invoke_without_command=True)
def run(
    context: Context,
    *,
    rate: Annotated[float, Option("--rate", min=0.1, max=1000, help="Jobs per second.")] = 20.0,
    workers: Annotated[int, Option("--workers", "-w", min=1, max=20, help="Worker processes.")] = 3,
    slots: Annotated[int, Option("--slots", min=1, max=1000, help="Of each: jobs at the same time.")] = 10,
    port: Annotated[int | None, Option("--port", min=1, max=65535, help="Of the API and dashboard.")] = None,
    seconds: Seconds = 0,
    dsn: Dsn = None,
    schema: Schema = None,
) -> None:
    """Start a PostgreSQL, three workers, the API with the dashboard, and traffic; then kill workers and watch.

    Press k, use the dashboard's button, or say `leasehold demo kill` in another terminal: another worker gives
    its jobs back, they move to the others, and the scoreboard still says: jobs lost 0. Ctrl-C ends everything.
    With a DSN that server is used, in a schema of its own.
    """
    if context.invoked_subcommand is not None:
        return
    settings = Settings.from_env(dsn=dsn, schema=schema)
    if settings.production:
        raise ConfigError("LEASEHOLD_ENV is 'production', and a demo makes jobs", hint="run it somewhere else")
    if (other := Controls(settings.home).running()) is not None:
        raise ConfigError(f"a demo runs here already, as process {other.pid}, on {other.url}", hint="end it first")
    if settings.dsn and not (schema or os.environ.get("LEASEHOLD_SCHEMA")):
        settings = Settings.from_env(dsn=dsn, schema="leasehold_demo")  # the other schemas of the server are left alone
    place = port or free_port(PORT)
    with located(settings, say=say) as where:
        if settings.dsn:
            migrate(where, schema=settings.schema)
        # The tasks' App takes its settings from here when it is imported, and so do the processes.
        os.environ.update(LEASEHOLD_DSN=where, LEASEHOLD_SCHEMA=settings.schema)
        run_async(DemoScreen(settings.home, rate=rate, workers=workers, slots=slots, port=place).run(seconds))


@commands.command("kill")
def kill(*, as_json: AsJson = False) -> None:
    """Kill one worker of the demo that runs here with SIGKILL, and say which."""
    killed = _controls().kill()
    answer(killed, killed["pid"], as_json=as_json)
    then = "another worker gives them back, or their leases expire within seconds"
    say(f"killed the worker {killed['pid']} with {killed['running']} jobs; {then}")


@commands.command("score")
def score(*, as_json: AsJson = False) -> None:
    """Show the scoreboard of the demo that runs here."""
    standing = _controls().read()
    if as_json:
        answer({"url": standing.url, "scoreboard": standing.scoreboard}, as_json=True)
    else:
        show_table(("figure", "value"), standing.scoreboard.items(), right=("value",))


@commands.command("serve", hidden=True)
def serve(port: int) -> None:
    """Serve the demo's API and dashboard, which can kill a worker. Started by the demo itself."""
    pipe = SupervisorPipe.take()
    logs.configure(logs.Level.INFO, logs.Format.TEXT)
    with closing(load_app(_APP)) as app:
        serve_here(app, Address(host="127.0.0.1", port=port), pipe=pipe, demo=_controls())


def _controls() -> Controls:
    return Controls(Settings.from_env().home)


class DemoScreen:
    """`run()` ends after SIGINT or SIGTERM, after the given time, or with q."""

    def __init__(self, home: Path, *, rate: float, workers: int, slots: int, port: int) -> None:
        self._rate = rate
        self._controls = Controls(home)
        self.url = f"http://127.0.0.1:{port}/dashboard/"
        arguments = ["worker", _APP, "--slots", str(slots), "--grace", str(_GRACE)]
        # Three seconds until a killed worker is replaced: time to see that the others go on.
        self._workers = [Part("worker", arguments, on_death=self._announce, pause=3.0) for _ in range(workers)]
        self._parts = [*self._workers, Part("API server", ["demo", "serve", str(port)], on_death=self._announce)]
        self._ledger = Ledger()
        self._orphans: set[UUID] = set()
        """Jobs whose lease a dead worker still has."""
        self._pids: set[int] = set()
        self._killed: set[str] = set()
        self._broken: dict[str, int] = {}
        self._recovered = 0
        self._owners: dict[UUID, str | None] = {}
        """Which worker ran which job at the last snapshot."""
        self._given_back: set[UUID] = set()
        """Jobs of dead workers that have not been seen running since."""
        self._news = ""
        self._live: Live | None = None
        self._stopping = asyncio.Event()

    async def run(self, seconds: float) -> None:
        """Run the demo; 0 seconds: until it is stopped."""
        self._controls.path.parent.mkdir(parents=True, exist_ok=True)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop)
        if seconds:
            loop.call_later(seconds, self._stopping.set)
        # They make their App, with the settings that are in place now.
        from leasehold.demo.tasks import app  # noqa: PLC0415
        from leasehold.demo.traffic import run_traffic  # noqa: PLC0415

        database = await app.adatabase()
        with suppress(NotPermitted):
            await database.arun(database.store.set_limit("queue", "reports", 4))
        say(f"the dashboard is on {self.url}; to kill a worker: its button, or `leasehold demo kill`")
        traffic = run_traffic(jobs_per_second=self._rate, acknowledged=lambda job: self._ledger.promise(job.id))
        try:
            await run_parts(self._parts, [traffic, self._watch(database)], self._stopping)
        finally:
            self._controls.path.unlink(missing_ok=True)
            await app.aclose()
        say(self._line())

    def _stop(self) -> None:
        if self._stopping.is_set():
            for part in self._parts:
                part.send(signal.SIGKILL)
        else:
            self._stopping.set()
            say(f"stopping: running jobs have {_GRACE} s; once more to end at once")

    async def _watch(self, database: Database) -> None:
        verified = spoken = 0.0
        with ExitStack() as stack:
            self._open(stack)
            while True:
                try:
                    seen = await asyncio.to_thread(take_snapshot, database)
                    await self._ledger.query(database)
                    if time.monotonic() - verified >= 3.0:
                        verified = time.monotonic()
                        laws = await database.arun(database.store.verify())
                        self._broken = {law.name: law.violations for law in laws if not law.ok}
                except DatabaseUnavailable as error:
                    self._announce(f"the database does not answer: {error.args[0]}")
                else:
                    self._note(seen)
                    if self._live is not None:
                        self._draw(self._live, seen)
                if self._live is None and time.monotonic() - spoken >= 2.0:
                    spoken = time.monotonic()
                    say(self._line())
                await asyncio.sleep(0.5)

    def _note(self, seen: Snapshot) -> None:
        """Record which jobs lost their worker, and which of these run elsewhere now."""
        host = socket.gethostname()
        live = {part.pid for part in self._workers if part.pid is not None}
        self._pids |= live
        self._killed = {w.id for w in seen.workers if w.host == host and w.pid in self._pids - live}
        owners = {job.id: job.lease_owner for job in seen.running}
        held = {job for job, owner in owners.items() if owner in self._killed}
        self._recovered += len(self._orphans - held)
        # Another worker returns a dead worker's jobs at once, often before the first snapshot.
        gone = {job for job, owner in self._owners.items() if owner in self._killed} - self._orphans
        self._given_back = (self._given_back | gone) - held
        back = {job for job in self._given_back if job in owners}
        self._recovered += len(back)
        self._given_back -= back
        self._orphans, self._owners = held, owners
        known = {w.pid: (w.id, w.running) for w in seen.workers if w.host == host and w.live}
        rows = [(pid, *known.get(pid, ("", 0))) for pid in sorted(live)]
        workers = [DemoWorker(pid=pid, born=born(pid), name=name, running=running) for pid, name, running in rows]
        mine = os.getpid()
        board = self._scoreboard()
        self._controls.write(Standing(pid=mine, born=born(mine), url=self.url, workers=workers, scoreboard=board))

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

    def _announce(self, news: str) -> None:
        self._news = news
        if self._live is None:
            say(news)

    def _line(self) -> str:
        figures = " · ".join(f"{name} {value:,}" for name, value in self._scoreboard().items())
        broken = f" · BROKEN: {', '.join(self._broken)}" if self._broken else ""
        return f"{figures}{broken} · {self.url}"

    def _open(self, stack: ExitStack) -> None:
        console = Console(stderr=True)
        if not console.is_terminal:
            return
        keys = stack.enter_context(Keys())
        if keys.descriptor is not None:
            loop = asyncio.get_running_loop()
            loop.add_reader(keys.descriptor, lambda: self._pressed(keys.read()))
            stack.callback(loop.remove_reader, keys.descriptor)
        self._live = stack.enter_context(Live(console=console, screen=True, auto_refresh=False))
        stack.callback(setattr, self, "_live", None)

    def _pressed(self, keys: str) -> None:
        if "q" in keys.lower():
            self._stopping.set()
        if "k" in keys.lower():
            try:
                killed = self._controls.kill()
                self._news = f"killed the worker {killed['pid']}: another worker gives its jobs back"
            except LeaseholdError as problem:
                self._news = str(problem)

    def _draw(self, live: Live, seen: Snapshot) -> None:
        board = self._scoreboard()
        lost = board["jobs lost"]
        top = Text(no_wrap=True, overflow="ellipsis")
        top.append(f" jobs lost {lost} ", style="bold white on red" if lost or self._broken else "bold black on green")
        top.append("  " + "  ".join(f"{name} {value:,}" for name, value in board.items() if name != "jobs lost"))
        keys = Text(f"k kills a worker · q ends · {self.url}", style="dim", no_wrap=True, overflow="ellipsis")
        news = Text(self._news.partition("\n")[0], style="yellow", no_wrap=True, overflow="ellipsis")
        header: list[RenderableType] = [top, keys, news, Text()]
        live.update(picture(seen, height=live.console.height, header=header, killed=self._killed), refresh=True)
