"""`leasehold worker`: run jobs."""

import asyncio
import logging
import os
import random
import sys
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import typer

from leasehold import collector, logs
from leasehold.app import App
from leasehold.cli import completion
from leasehold.cli.connected import Dsn, Schema
from leasehold.cli.ending import end_within, supervised
from leasehold.cli.loading import load_app
from leasehold.cli.log_options import LogFormat, LogLevel, Tracebacks, sayer
from leasehold.db.link import Backoff
from leasehold.db.migrate import check
from leasehold.db.outage import Outage
from leasehold.errors import DatabaseUnavailable, WorkerFailed
from leasehold.supervise import RETIRED
from leasehold.supervise.attend import attended, check_memory_limit
from leasehold.supervise.health import EVERY, HealthFile
from leasehold.supervise.reloader import Watcher, roots_of
from leasehold.supervise.signals import Signals
from leasehold.supervise.supervisor import Supervisor, SupervisorOptions
from leasehold.supervise.systemd import Systemd
from leasehold.supervise.tether import Tether
from leasehold.worker import Worker, WorkerOptions
from leasehold.worker.queues import parse_queues

T = TypeVar("T")

AppPlace: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="Where the App is: module:app, or a package, whose modules called tasks are imported.",
        show_default=False,
        autocompletion=completion.apps,
    ),
]
Queues: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--queues",
        "-q",
        help="Only these queues: mail,reports; in turns by weight: mail:3,reports:1.",
        autocompletion=completion.queue_list,
    ),
]
Slots: TypeAlias = Annotated[int, typer.Option("--slots", "-s", help="How many jobs run at the same time.")]
Prefetch: TypeAlias = Annotated[int, typer.Option("--prefetch", help="How many more to claim ahead.")]
Grace: TypeAlias = Annotated[float, typer.Option("--grace", help="Seconds to finish running jobs after SIGTERM.")]
Processes: TypeAlias = Annotated[
    int, typer.Option("--processes", "-p", min=1, help="How many worker processes, each with its own slots.")
]
Reload: TypeAlias = Annotated[bool, typer.Option("--reload", help="Development: start anew when a .py file changes.")]
MaxJobs: TypeAlias = Annotated[
    int | None,
    typer.Option("--max-jobs", min=1, help="Replace a process after about so many jobs (give or take 10 %)."),
]
ChildJobs: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--child-jobs",
        min=1,
        help="Replace a process of executor='process' tasks after so many jobs; it has 10 s to exit.",
    ),
]
MemoryLimit: TypeAlias = Annotated[
    int | None, typer.Option("--memory-limit", min=1, metavar="MB", help="Replace a process that occupies more.")
]
HealthPath: TypeAlias = Annotated[
    Path | None, typer.Option("--health-file", help="Write here, as JSON, every 2 s how the workers are doing.")
]
Verbose: TypeAlias = Annotated[bool, typer.Option("--verbose", "-v", help="Log more: --log-level debug.")]

logger = logging.getLogger(__name__)

_PATIENCE = 75.0
"""Seconds beyond the grace period for the end of a worker without a second signal: its last reports may take long."""

_CHECK = "the start of the worker"

_LOOP_STOPPED = "Event loop stopped before Future completed."
"""What asyncio and uvloop say when a task has stopped the event loop."""

_LAST_STEPS = 15.0
"""Seconds beyond the grace period after which a worker that has died ends, wherever it is."""

_LAST_SECONDS = 5.0
"""After which a worker process that has nothing more to do ends, whatever a task still does."""


def command(  # noqa: PLR0913 (each is an option)
    app: AppPlace,
    *,
    queues: Queues = None,
    slots: Slots = 10,
    prefetch: Prefetch = 0,
    grace: Grace = 30.0,
    processes: Processes = 1,
    reload: Reload = False,
    max_jobs: MaxJobs = None,
    child_jobs: ChildJobs = None,
    memory_limit: MemoryLimit = None,
    health_file: HealthPath = None,
    dsn: Dsn = None,
    schema: Schema = None,
    verbose: Verbose = False,
    log_level: LogLevel = logs.Level.INFO,
    log_format: LogFormat = logs.Format.TEXT,
    tracebacks: Tracebacks = False,
) -> None:
    """Claim jobs and run them, until SIGTERM or Ctrl-C.

    The first signal stops claiming and lets running jobs finish within the grace period; the second gives
    them back at once. A process that is replaced gets the same grace period. With more than one process, SIGHUP
    replaces them one after the other.
    """
    tether = Tether.take()  # first of all: the supervisor may be gone already
    systemd = Systemd.take()
    health = HealthFile(health_file) if health_file is not None and tether is None else None
    _put_in_place(dsn, schema)
    logs.configure(logs.Level.DEBUG if verbose else log_level, log_format, tracebacks=tracebacks)
    if max_jobs is not None:  # spread, so that processes that started together do not retire together
        max_jobs = max(1, round(max_jobs * random.uniform(0.9, 1.1)))  # noqa: S311
    options = WorkerOptions(
        queues=parse_queues(queues) if queues else None,
        slots=slots,
        prefetch=prefetch,
        grace=grace,
        max_jobs=max_jobs,
        child_jobs=child_jobs,
    )
    if tether is None and (processes > 1 or reload or max_jobs is not None or memory_limit is not None):
        watcher = Watcher(roots_of(app)) if reload else None
        raise typer.Exit(_supervise(processes, grace, watcher, health, systemd))
    limit = memory_limit << 20 if memory_limit is not None else None
    loaded = _load(app)
    begun = threading.Event()
    serving = serve(loaded, options, tether=tether, systemd=systemd, health=health, memory_limit=limit, begun=begun.set)
    code = _to_the_end(serving, begun)
    end_within(_LAST_SECONDS, code)  # threads and exit hooks that tasks left behind may not end
    if code:
        raise typer.Exit(code)


def _put_in_place(dsn: str | None, schema: str | None) -> None:
    """The module makes its App when it is imported, so what is given here must be in place before."""
    if dsn:
        os.environ["LEASEHOLD_DSN"] = dsn
    if schema:
        os.environ["LEASEHOLD_SCHEMA"] = schema


def _load(app: str) -> App:
    loaded = load_app(app)
    if not loaded.tasks:
        logger.warning(
            "%s has no tasks, so nothing will be run; of a package the modules called tasks are imported", app
        )
    return loaded


def _to_the_end(serving: Coroutine[Any, Any, int], begun: threading.Event) -> int:
    try:
        return run_async(serving)
    except (SystemExit, KeyboardInterrupt, asyncio.CancelledError, RuntimeError) as end:
        if isinstance(end, RuntimeError) and str(end) != _LOOP_STOPPED:
            raise  # of ours, or of a library
        if isinstance(end, KeyboardInterrupt) and not begun.is_set():
            raise  # Ctrl-C before the worker's own handlers were there
        logger.critical("the event loop of this worker has ended, so the worker ends; its leases run out", exc_info=end)
        raise WorkerFailed(
            f"the event loop of this worker has ended: {type(end).__name__}: {end}",
            hint="a task has stopped it, or cancelled all that runs in it",
        ) from end


def _supervise(
    processes: int, grace: float, watcher: Watcher | None, health: HealthFile | None, systemd: Systemd
) -> int:
    env = dict(os.environ)
    if watcher is not None:
        # Two saves in one second that leave the size as it was would be taken for the same source.
        env["PYTHONDONTWRITEBYTECODE"] = "1"
    # Workers get this very command line, and learn from the environment that they are workers.
    command = [sys.executable, "-m", "leasehold", *sys.argv[1:]]
    options = SupervisorOptions(
        command=command, processes=processes, grace=grace, env=env, health=health, watcher=watcher
    )

    async def run(say: Callable[[str], None]) -> int:
        return await Supervisor(options, systemd=systemd, say=say).run()

    return supervised(lambda say: asyncio.run(run(say)))


async def serve(
    app: App,
    options: WorkerOptions,
    *,
    tether: Tether | None = None,
    systemd: Systemd | None = None,
    health: HealthFile | None = None,
    memory_limit: int | None = None,
    begun: Callable[[], None] = lambda: None,
) -> int:
    """Run a worker under signals, until it has stopped. Gives the exit code: RETIRED if it wants to be replaced.

    `begun` is called when the signals are heard.
    """
    worker = Worker(app, options)
    await _until_checked((await app.adatabase()).dsn, worker, health)
    if memory_limit is not None:
        check_memory_limit(memory_limit)
    collector.settle()
    # From the death of a loop on, before a line about it is logged: that line may have to wait for ever.
    worker.on_death = partial(end_within, options.grace + _LAST_STEPS, WorkerFailed.exit_code)
    loop = asyncio.get_running_loop()
    stop = partial(loop.call_soon_threadsafe, _stop, worker, options.grace if tether is None else None)
    try:
        again, patience = partial(loop.call_soon_threadsafe, worker.stop), options.grace + _PATIENCE
        with Signals(stop, again, patience=patience, main=loop.call_soon_threadsafe):
            begun()
            async with attended(worker, tether=tether, systemd=systemd, health=health, memory_limit=memory_limit):
                await worker.run()
    except WorkerFailed as error:
        end_within(_LAST_SECONDS, error.exit_code)
        raise
    except asyncio.CancelledError:
        # Nothing of ours cancels this: a task has stopped the event loop, or cancelled everything in it.
        end_within(_LAST_SECONDS, WorkerFailed.exit_code)
        raise
    finally:
        await app.aclose()
    code = RETIRED if worker.retired is not None else int(worker.left_behind > 0)
    if worker.left_behind:  # the event loop would wait for what does not end
        end_within(_LAST_SECONDS, code)
    return code


async def _until_checked(dsn: str, worker: Worker, health: HealthFile | None) -> None:
    """Return when the database has answered and has the right schema. While it is away, wait, and say so once."""
    outage, backoff = Outage(), Backoff(first=0.2, longest=EVERY)
    while True:
        try:
            await asyncio.to_thread(check, dsn, schema=worker.app.settings.schema)
        except DatabaseUnavailable as error:
            outage.met(_CHECK, error)
            if health is not None:
                health.write({**worker.snapshot().as_dict(), "state": "waiting for the database"})
            await asyncio.sleep(backoff.pause())
        else:
            outage.over(_CHECK)
            return


def _stop(worker: Worker, grace: float | None) -> None:
    worker.stop()
    if grace is not None:  # else the supervisor has said it
        sayer()(f"stopping: running jobs have {grace:g} s; once more to give them back now")


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop where it is installed: it halves what the event loop costs a job."""
    try:
        import uvloop  # noqa: PLC0415 (not on every platform)
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)
