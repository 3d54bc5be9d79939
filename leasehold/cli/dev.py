"""`leasehold dev`: everything at once, on this machine, to look at."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from leasehold.app import App
from leasehold.cli.console import say
from leasehold.cli.loading import load_app
from leasehold.cli.serve import PORT
from leasehold.cli.worker import run_async
from leasehold.config import Settings
from leasehold.demo.traffic import run_traffic
from leasehold.errors import ConfigError, DatabaseUnavailable
from leasehold.locate import located

_DEMO = "leasehold.demo:app"
_STATES = ("created", "queued", "parked", "running", "retry", "success", "dead")
_MEANING = {
    "created": "wait for their time",
    "queued": "can run now",
    "parked": "wait for their exclusive key",
    "running": "under a lease",
    "retry": "failed, will be tried again",
    "success": "done",
    "dead": "gave up, or cancelled",
}


def command(
    app: Annotated[str, typer.Argument(help="Your App as module:app; left out: the demo.")] = _DEMO,
    *,
    rate: Annotated[float, typer.Option("--rate", help="Demo jobs per second; 0 for none.", min=0)] = 20.0,
    slots: Annotated[int, typer.Option("--slots", help="How many jobs run at the same time.")] = 20,
    dsn: Annotated[str | None, typer.Option("--dsn", help="The database; LEASEHOLD_DSN when left out.")] = None,
    seconds: Annotated[float, typer.Option("--for", help="Stop by itself after so many seconds; 0: never.", min=0)] = 0,
) -> None:
    """Start a PostgreSQL, migrate it, run a worker, the API and some demo traffic, and show what happens.

    With LEASEHOLD_DSN set, that server is used instead of an embedded one.
    """
    settings = Settings.from_env(dsn=dsn)
    with located(settings, say=say) as found:
        os.environ["LEASEHOLD_DSN"] = found
        loaded = load_app(app)
        run_async(_dev(loaded, app, rate=rate if app == _DEMO else 0.0, slots=slots, seconds=seconds))


async def _dev(app: App, name: str, *, rate: float, slots: int, seconds: float) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    if seconds:
        loop.call_later(seconds, stopping.set)
    worker = _Process("worker", ["worker", name, "--slots", str(slots), "--grace", "5"])
    port = _free_port()
    server = _Process("API server", ["serve", name, "--port", str(port)])
    say(f"the API is on http://127.0.0.1:{port} (its description: /openapi.json)")
    parts = [asyncio.create_task(process.run()) for process in (worker, server)]
    parts.append(asyncio.create_task(_show(app, worker, f"http://127.0.0.1:{port}")))
    if rate:
        parts.append(asyncio.create_task(run_traffic(jobs_per_second=rate)))
    waiting = asyncio.create_task(stopping.wait())
    done, _ = await asyncio.wait([waiting, *parts], return_when=asyncio.FIRST_COMPLETED)
    for part in parts:
        part.cancel()
    results = await asyncio.gather(*parts, return_exceptions=True)
    await asyncio.gather(worker.stop(), server.stop())
    await app.aclose()
    for part, result in zip(parts, results, strict=True):
        if part in done and isinstance(result, BaseException):
            raise result


def _free_port() -> int:
    """The API's port, or the next one that is free."""
    for port in range(PORT, PORT + 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise ConfigError(f"no port from {PORT} to {PORT + 99} is free", hint="end what occupies them")


class _Process:
    """A part in a process of its own, started again when it dies: kill it and see."""

    def __init__(self, what: str, arguments: list[str]) -> None:
        self._what = what
        self._command = [sys.executable, "-m", "leasehold", *arguments]
        self._process: asyncio.subprocess.Process | None = None
        self.deaths = 0
        self.news = ""
        """What happened last."""
        self.tell: Callable[[str], None] = say

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def run(self) -> None:
        while True:
            # A session of its own: Ctrl-C is for us, who stop it in good order.
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, start_new_session=True
            )
            _, errors = await self._process.communicate()
            self.deaths += 1
            self.news = f"{self._what} {self._process.pid} ended ({_how(self._process.returncode)}); starting another"
            if self._process.returncode not in {0, -signal.SIGKILL}:
                self.news += "\n" + errors.decode(errors="replace")[-2000:].strip()
            self.tell(self.news)
            await asyncio.sleep(0.5)

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()


def _how(returncode: int | None) -> str:
    if returncode is not None and returncode < 0:
        return f"killed by {signal.Signals(-returncode).name}"
    return f"exit code {returncode}"


async def _show(app: App, worker: _Process, url: str) -> None:
    """Counts, live in a terminal, a line every two seconds elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        while True:
            say(_line(await _counts(app), worker))
            await asyncio.sleep(2)
    worker.tell = lambda _news: None  # it stands below the table; a line of its own would break the picture
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            counts = await _counts(app)
            live.update(Group(_table(counts), *map(Text, _below(counts, worker, url))), refresh=True)
            await asyncio.sleep(0.25)


async def _counts(app: App) -> dict[str, tuple[int, bool]]:
    database = await app.adatabase()
    try:
        return await database.arun(database.store.counts())
    except DatabaseUnavailable:
        return {}


def _number(counts: dict[str, tuple[int, bool]], state: str) -> str:
    number, capped = counts.get(state, (0, False))
    return f"{number:,}{'+' if capped else ''}"


def _line(counts: dict[str, tuple[int, bool]], worker: _Process) -> str:
    states = "  ".join(f"{state} {_number(counts, state)}" for state in _STATES)
    return f"{states}  ({counts.get('success in 10 s', (0, False))[0] / 10:.1f}/s, worker {worker.pid or 'none'})"


def _table(counts: dict[str, tuple[int, bool]]) -> Table:
    table = Table(title="Leasehold", title_justify="left")
    table.add_column("state")
    table.add_column("jobs", justify="right")
    table.add_column("what they do", style="dim")
    for state in _STATES:
        table.add_row(state, _number(counts, state), _MEANING[state])
    return table


def _below(counts: dict[str, tuple[int, bool]], worker: _Process, url: str) -> list[str]:
    rate = counts.get("success in 10 s", (0, False))[0] / 10
    hint = f"worker {worker.pid}: try  kill -9 {worker.pid}" if worker.pid else "no worker"
    return [
        f"{rate:.1f} done per second · {hint} · died so far: {worker.deaths} · Ctrl-C ends",
        f"API: {url}",
        worker.news,
    ]
