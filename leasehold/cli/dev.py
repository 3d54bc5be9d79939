"""`leasehold dev`: PostgreSQL, a worker, the API and the dashboard on this machine."""

import asyncio
import os
import signal
from functools import partial
from typing import Annotated

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from typer import Argument, Option, echo

from leasehold import logs
from leasehold._locate import located
from leasehold.app import App
from leasehold.cli import completion
from leasehold.cli.console import count, say
from leasehold.cli.options import Dsn
from leasehold.cli.processes import Part, free_port, run_parts
from leasehold.cli.running import LogLevel, Seconds, load_app, run_async
from leasehold.cli.serve import PORT
from leasehold.config import Settings
from leasehold.errors import ConfigError, DatabaseUnavailable
from leasehold.operate.reasons import MEANINGS
from leasehold.supervise.source_watcher import SourceWatcher, roots_of

_DEMO = "leasehold.demo.tasks:app"
_STATES = {state: meaning for state, meaning in MEANINGS.items() if state != "cancelled"}

Counts = dict[str, tuple[int, bool]]


def command(
    app: Annotated[
        str, Argument(help="Your App as module:app; left out: the demo.", autocompletion=completion.apps)
    ] = _DEMO,
    *,
    rate: Annotated[float, Option("--rate", help="Demo jobs per second; 0 for none.", min=0)] = 20.0,
    slots: Annotated[int, Option("--slots", help="How many jobs run at the same time.")] = 20,
    port: Annotated[
        int | None, Option("--port", min=1, max=65535, help=f"Of the API; left out: {PORT}, or the next that is free.")
    ] = None,
    reload: Annotated[bool, Option("--reload", help="Start the worker anew when a .py file changes.")] = False,
    dsn: Dsn = None,
    seconds: Seconds = 0,
    log_level: LogLevel = logs.Level.INFO,
) -> None:
    """Start a PostgreSQL, migrate it, run a worker and the API, and show what happens. Without an app: the demo's.

    With LEASEHOLD_DSN set, that server is used instead of an embedded one.
    """
    with located(Settings.from_env(dsn=dsn), say=say) as found:
        os.environ["LEASEHOLD_DSN"] = found
        watcher = SourceWatcher(roots_of(app)) if reload else None
        loaded = load_app(app)
        place = port or free_port(PORT)
        if port is not None and free_port(port) != port:
            raise ConfigError(f"port {port} is taken", hint="choose another with --port, or leave it out")
        arguments = ["worker", app, "--slots", str(slots), "--grace", "5", f"--log-level={log_level}", "--tracebacks"]
        on_line = None if app == _DEMO else partial(echo, err=True)  # the demo's tasks log nothing worth reading
        # No compiled files: Python takes two saves in one second for one.
        env = {"PYTHONDONTWRITEBYTECODE": "1"} if reload else {}
        worker = Part("worker", arguments, on_death=say, on_line=on_line, env=env)
        server = Part("API server", ["serve", app, "--port", str(place)], on_death=say)
        run_async(_dev(loaded, worker, server, place, watcher, rate=rate if app == _DEMO else 0.0, seconds=seconds))


async def _dev(
    app: App, worker: Part, server: Part, port: int, watcher: SourceWatcher | None, *, rate: float, seconds: float
) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    if seconds:
        loop.call_later(seconds, stopping.set)
    # Before the worker has started: a program that enqueues at once must find the kind.
    database = await app.adatabase()
    await database.arun(database.store.declare_tasks(app.declaration()))
    say(f"the API is on http://127.0.0.1:{port} (its description: /openapi.json), the dashboard on /dashboard/")
    loops = [_show(app, worker, f"http://127.0.0.1:{port}")]
    if watcher is not None:
        loops.append(_reload(worker, watcher))
    if rate:
        from leasehold.demo.traffic import run_traffic  # noqa: PLC0415 (makes its App: now, with the settings in place)

        loops.append(run_traffic(jobs_per_second=rate))
    try:
        await run_parts((worker, server), loops, stopping)
    finally:
        await app.aclose()


async def _reload(worker: Part, watcher: SourceWatcher) -> None:
    async for changed in watcher.changes():
        say(f"{changed[0]} changed: starting the worker anew")
        worker.replace()


async def _show(app: App, worker: Part, url: str) -> None:
    """Show counts, live in a terminal, a line every two seconds elsewhere."""
    console = Console(stderr=True)
    while not console.is_terminal:
        counts = await _counts(app)
        states = "  ".join(f"{state} {_number(counts, state)}" for state in _STATES)
        say(f"{states}  ({_rate(counts)}/s, worker {worker.pid or 'none'})")
        await asyncio.sleep(2)
    worker.on_death = lambda _news: None  # its news stand below the table; a line of its own would break the picture
    with Live(console=console, auto_refresh=False, transient=False) as live:
        if worker.on_line is not None:
            worker.on_line = lambda line: console.print(Text.from_ansi(line), soft_wrap=True)  # above the table
        while True:
            live.update(_picture(await _counts(app), worker, url), refresh=True)
            await asyncio.sleep(0.25)


async def _counts(app: App) -> Counts:
    database = await app.adatabase()
    try:
        return await database.arun(database.store.counts())
    except DatabaseUnavailable:
        return {}


def _number(counts: Counts, state: str) -> str:
    return count(*counts.get(state, (0, False)))


def _rate(counts: Counts) -> str:
    return f"{counts.get('success in 10 s', (0, False))[0] / 10:.1f}"


def _picture(counts: Counts, worker: Part, url: str) -> Group:
    table = Table(title="Leasehold", title_justify="left")
    table.add_column("state")
    table.add_column("jobs", justify="right")
    table.add_column("what they do", style="dim")
    for state, meaning in _STATES.items():
        table.add_row(state, _number(counts, state), meaning)
    hint = f"worker {worker.pid}: try  kill -9 {worker.pid}" if worker.pid else "no worker"
    below = f"{_rate(counts)} done per second · {hint} · died so far: {worker.deaths} · Ctrl-C ends"
    return Group(table, Text(below), Text(f"API: {url}"), Text(worker.news))
