"""`leasehold dev`: everything at once, on this machine, to look at."""

import asyncio
import os
import signal
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from leasehold import logs
from leasehold.app import App
from leasehold.cli import completion
from leasehold.cli.console import say
from leasehold.cli.loading import load_app
from leasehold.cli.log_options import LogLevel
from leasehold.cli.processes import Part, free_port
from leasehold.cli.serve import PORT
from leasehold.cli.worker import run_async
from leasehold.config import Settings
from leasehold.errors import ConfigError, DatabaseUnavailable
from leasehold.locate import located
from leasehold.supervise.reloader import Watcher, roots_of

_DEMO = "leasehold.demo.tasks:app"
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
    app: Annotated[
        str, typer.Argument(help="Your App as module:app; left out: the demo.", autocompletion=completion.apps)
    ] = _DEMO,
    *,
    rate: Annotated[float, typer.Option("--rate", help="Demo jobs per second; 0 for none.", min=0)] = 20.0,
    slots: Annotated[int, typer.Option("--slots", help="How many jobs run at the same time.")] = 20,
    port: Annotated[
        int | None,
        typer.Option("--port", min=1, max=65535, help=f"Of the API; left out: {PORT}, or the next that is free."),
    ] = None,
    reload: Annotated[bool, typer.Option("--reload", help="Start the worker anew when a .py file changes.")] = False,
    dsn: Annotated[str | None, typer.Option("--dsn", help="The database; LEASEHOLD_DSN when left out.")] = None,
    seconds: Annotated[float, typer.Option("--for", help="Stop by itself after so many seconds; 0: never.", min=0)] = 0,
    log_level: LogLevel = logs.Level.INFO,
) -> None:
    """Start a PostgreSQL, migrate it, run a worker and the API, and show what happens. Without an app: the demo's.

    With LEASEHOLD_DSN set, that server is used instead of an embedded one.
    """
    settings = Settings.from_env(dsn=dsn)
    with located(settings, say=say) as found:
        os.environ["LEASEHOLD_DSN"] = found
        watcher = Watcher(roots_of(app)) if reload else None
        loaded = load_app(app)
        place = free_port(PORT) if port is None else _checked_port(port)
        arguments = ["worker", app, "--slots", str(slots), "--grace", "5", f"--log-level={log_level}", "--tracebacks"]
        # What the demo's tasks say is not worth reading. No compiled files: two saves in one second look the same.
        hear, env = (None if app == _DEMO else _echo), ({"PYTHONDONTWRITEBYTECODE": "1"} if reload else None)
        worker = Part("worker", arguments, tell=say, hear=hear, env=env)
        server = Part("API server", ["serve", app, "--port", str(place)], tell=say)
        run_async(_dev(loaded, worker, server, place, watcher, rate=rate if app == _DEMO else 0.0, seconds=seconds))


def _checked_port(port: int) -> int:
    if free_port(port) != port:
        raise ConfigError(f"port {port} is taken", hint="choose another with --port, or leave it out")
    return port


async def _dev(
    app: App, worker: Part, server: Part, port: int, watcher: Watcher | None, *, rate: float, seconds: float
) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    if seconds:
        loop.call_later(seconds, stopping.set)
    # Now, and not only when the worker has started: a program that enqueues at once must find the kind.
    database = await app.adatabase()
    await database.arun(database.store.declare_tasks(app.declaration()))
    say(f"the API is on http://127.0.0.1:{port} (its description: /openapi.json), the dashboard on /dashboard/")
    parts = [asyncio.create_task(process.run()) for process in (worker, server)]
    parts.append(asyncio.create_task(_show(app, worker, f"http://127.0.0.1:{port}")))
    if watcher is not None:
        parts.append(asyncio.create_task(_reload(worker, watcher)))
    if rate:
        from leasehold.demo.traffic import run_traffic  # noqa: PLC0415 (makes its App: now, with the settings in place)

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


async def _reload(worker: Part, watcher: Watcher) -> None:
    async for changed in watcher.changes():
        say(f"{changed[0]} changed: starting the worker anew")
        worker.replace()


async def _show(app: App, worker: Part, url: str) -> None:
    """Counts, live in a terminal, a line every two seconds elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        while True:
            say(_line(await _counts(app), worker))
            await asyncio.sleep(2)
    worker.tell = lambda _news: None  # it stands below the table; a line of its own would break the picture
    with Live(console=console, auto_refresh=False, transient=False) as live:
        if worker.hear is not None:
            worker.hear = lambda line: console.print(Text.from_ansi(line), soft_wrap=True)  # above the table
        while True:
            counts = await _counts(app)
            live.update(Group(_table(counts), *map(Text, _below(counts, worker, url))), refresh=True)
            await asyncio.sleep(0.25)


def _echo(line: str) -> None:
    typer.echo(line, err=True)


async def _counts(app: App) -> dict[str, tuple[int, bool]]:
    database = await app.adatabase()
    try:
        return await database.arun(database.store.counts())
    except DatabaseUnavailable:
        return {}


def _number(counts: dict[str, tuple[int, bool]], state: str) -> str:
    number, capped = counts.get(state, (0, False))
    return f"{number:,}{'+' if capped else ''}"


def _line(counts: dict[str, tuple[int, bool]], worker: Part) -> str:
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


def _below(counts: dict[str, tuple[int, bool]], worker: Part, url: str) -> list[str]:
    rate = counts.get("success in 10 s", (0, False))[0] / 10
    hint = f"worker {worker.pid}: try  kill -9 {worker.pid}" if worker.pid else "no worker"
    return [
        f"{rate:.1f} done per second · {hint} · died so far: {worker.deaths} · Ctrl-C ends",
        f"API: {url}",
        worker.news,
    ]
