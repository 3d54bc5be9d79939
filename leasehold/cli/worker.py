"""`leasehold worker`: run jobs."""

import asyncio
import logging
import os
import random
import sys
import threading
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Exit, Option

from leasehold import logs
from leasehold._logger import logger_of
from leasehold._os_process import free_descriptors, settle_collector
from leasehold.app import App
from leasehold.cli import completion, running
from leasehold.cli.options import Dsn, Schema
from leasehold.db.connections.link import Backoff
from leasehold.db.connections.outage import Outage
from leasehold.db.migrations.migrate import check
from leasehold.errors import DatabaseUnavailable, WorkerFailed
from leasehold.supervise import RETIRED
from leasehold.supervise.report_targets import EVERY, HealthFile, SupervisorPipe, Systemd
from leasehold.supervise.signals import Signals
from leasehold.supervise.source_watcher import SourceWatcher, roots_of
from leasehold.supervise.status_reports import check_memory_limit, status_reported
from leasehold.supervise.supervisor import SupervisorOptions
from leasehold.worker import Worker, WorkerOptions, log_lines
from leasehold.worker.options import parse_queues

logger = logger_of(__name__)

_CHECK = "the start of the worker"
_LAST_STEPS = 15.0
"""Seconds beyond the grace period after which a worker that has died or stopped ends, wherever it is."""
_LAST_SECONDS = 5.0
"""After which a worker process that has nothing more to do ends, whatever a task still does."""


def command(  # noqa: PLR0913 (each is an option)
    app: Annotated[
        str,
        Argument(
            help="Where the App is: module:app, or a package, whose modules called tasks are imported.",
            show_default=False,
            autocompletion=completion.apps,
        ),
    ],
    *,
    queues: Annotated[
        str | None,
        Option(
            "--queues",
            "-q",
            help="Only these queues: mail,reports; in turns by weight: mail:3,reports:1.",
            autocompletion=completion.queue_list,
        ),
    ] = None,
    slots: Annotated[int, Option("--slots", "-s", help="How many jobs run at the same time.")] = 10,
    prefetch: Annotated[int, Option("--prefetch", help="How many more to claim ahead.")] = 0,
    grace: Annotated[float, Option("--grace", help="Seconds to finish running jobs after SIGTERM.")] = 30.0,
    processes: Annotated[
        int, Option("--processes", "-p", min=1, help="How many worker processes, each with its own slots.")
    ] = 1,
    reload: Annotated[bool, Option("--reload", help="Development: start anew when a .py file changes.")] = False,
    max_jobs: Annotated[
        int | None, Option("--max-jobs", min=1, help="Replace a process after about so many jobs (give or take 10 %).")
    ] = None,
    child_jobs: Annotated[
        int | None,
        Option(
            "--child-jobs",
            min=1,
            help="Replace a process of executor='process' tasks after so many jobs; it has 10 s to exit.",
        ),
    ] = None,
    memory_limit: Annotated[
        int | None,
        Option(
            "--memory-limit",
            min=1,
            metavar="MB",
            help="Replace a process that occupies more; at twice as much it gives its jobs back.",
        ),
    ] = None,
    health_file: Annotated[
        Path | None, Option("--health-file", help="Write here, as JSON, every 2 s how the workers are doing.")
    ] = None,
    dsn: Dsn = None,
    schema: Schema = None,
    verbose: running.Verbose = False,
    log_level: running.LogLevel = logs.Level.INFO,
    log_format: running.LogFormat = logs.Format.TEXT,
    tracebacks: Annotated[
        bool,
        Option(
            "--tracebacks",
            envvar="LEASEHOLD_LOG_TRACEBACKS",
            help="Log the traceback of each failed attempt, not only of the last. As JSON it is always there.",
        ),
    ] = False,
) -> None:
    """Claim jobs and run them, until SIGTERM or Ctrl-C.

    The first signal stops claiming and lets running jobs finish within the grace period; the second gives
    them back at once. With more than one process, SIGHUP replaces them one after the other, each with the same grace
    period. A process that reaches --max-jobs or --memory-limit is replaced at once, and finishes what it runs, however
    long that takes.
    """
    pipe = SupervisorPipe.take()  # first of all: the supervisor may be gone already
    systemd = Systemd.take()
    health = HealthFile(health_file) if health_file is not None and pipe is None else None
    running.put_in_place(dsn, schema)
    logs.configure(logs.Level.DEBUG if verbose else log_level, log_format, tracebacks=tracebacks, background=True)
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
    if pipe is None and (processes > 1 or reload or max_jobs is not None or memory_limit is not None):
        watcher = SourceWatcher(roots_of(app)) if reload else None
        raise Exit(_supervise(processes, grace, watcher, health, systemd))
    limit = memory_limit << 20 if memory_limit is not None else None
    loaded = running.load_app(app)
    if not loaded.tasks:
        text = "%s has no tasks, so nothing will be run; of a package the modules called tasks are imported"
        logger.warning(text, app)
    begun = threading.Event()
    serving = serve(loaded, options, pipe=pipe, systemd=systemd, health=health, memory_limit=limit, begun=begun.set)
    code = _to_the_end(serving, begun)
    if code:
        raise Exit(code)


def _to_the_end(serving: Coroutine[Any, Any, int], begun: threading.Event) -> int:
    try:
        return running.run_async(serving)
    except (SystemExit, KeyboardInterrupt, asyncio.CancelledError, RuntimeError) as end:
        if isinstance(end, RuntimeError) and str(end) != "Event loop stopped before Future completed.":
            raise  # of ours, or of a library: asyncio and uvloop say that when a task has stopped the event loop
        if isinstance(end, KeyboardInterrupt) and not begun.is_set():
            raise  # Ctrl-C before the worker's own handlers were there
        logger.critical("the event loop of this worker has ended, so the worker ends; its leases run out", exc_info=end)
        message = f"the event loop of this worker has ended: {type(end).__name__}: {end}"
        raise WorkerFailed(message, hint="a task has stopped it, or cancelled all that runs in it") from end
    finally:
        logs.flush(0.3)  # before an error is printed


def _supervise(
    processes: int, grace: float, watcher: SourceWatcher | None, health: HealthFile | None, systemd: Systemd
) -> int:
    env = dict(os.environ)
    if watcher is not None:
        # Python takes two saves in one second for the same source if the size is the same.
        env["PYTHONDONTWRITEBYTECODE"] = "1"
    # Workers get this very command line; the environment marks them as workers.
    command = [sys.executable, "-m", "leasehold", *sys.argv[1:]]
    options = SupervisorOptions(
        command=command, processes=processes, grace=grace, env=env, health=health, watcher=watcher
    )
    return running.supervised(options, systemd)


async def serve(
    app: App,
    options: WorkerOptions,
    *,
    pipe: SupervisorPipe | None,
    systemd: Systemd,
    health: HealthFile | None,
    memory_limit: int | None,
    begun: Callable[[], None],  # called when signals are handled
) -> int:
    """Run a worker until it has stopped and return the exit code: RETIRED if it wants to be replaced."""
    worker = Worker(app, options, may_retire=pipe.may_retire if pipe is not None else lambda: True)
    await _until_checked((await app.adatabase()).dsn, worker, health)
    if memory_limit is not None:
        check_memory_limit(memory_limit)
    settle_collector()
    # From the death of a loop on, before a line about it is logged: that line may have to wait for ever.
    died = partial(running.end_within, options.grace + _LAST_STEPS, WorkerFailed.exit_code)
    loop = asyncio.get_running_loop()
    stop = partial(loop.call_soon_threadsafe, _stop, worker, options.grace if pipe is None else None)
    again = partial(loop.call_soon_threadsafe, worker.stop)
    reports = status_reported(worker, pipe=pipe, systemd=systemd, health=health, memory_limit=memory_limit)
    try:
        # Without a second signal there are 75 s beyond the grace period: shutdown hooks may take long.
        with Signals(stop, again, patience=options.grace + 75.0, main=loop.call_soon_threadsafe):
            if (this := asyncio.current_task()) is not None and this.cancelling():
                raise KeyboardInterrupt  # Ctrl-C just before: asyncio has yet to deliver it
            begun()
            async with reports as stalled:
                await worker.run(died=died, stalled=stalled)
        code = RETIRED if worker.retired is not None else int(worker.left_behind > 0)
        # The event loop and the interpreter wait for asyncio tasks, threads and exit hooks that tasks have left behind.
        end = partial(running.end_within, code=code, last=partial(_log_left_behind, loop))
        end(_LAST_STEPS)
    except (WorkerFailed, asyncio.CancelledError):
        # Nothing of ours cancels this: a task has stopped the event loop, or cancelled everything in it.
        running.end_within(_LAST_SECONDS, WorkerFailed.exit_code)
        raise
    finally:
        app.close()  # not in a thread of asyncio: tasks may have left all of them busy
        free_descriptors()  # the event loop needs some to end
    end(_LAST_SECONDS)
    return code


def _log_left_behind(loop: asyncio.AbstractEventLoop) -> None:
    """Log what does not end, from another thread."""
    # An exit hook has no name here. Of the threads, only those that are no daemons are waited for.
    threads = [one for one in threading.enumerate() if not one.daemon and one is not threading.main_thread()]
    left = [f"thread {one.name}" for one in threads]
    left += [
        f"asyncio task {getattr(one.get_coro(), '__qualname__', '') or one.get_name()}"
        for one in asyncio.all_tasks(loop)
    ]
    # Without the thread and the coroutine with which an event loop waits for the threads of its executor.
    left = [one for one in left if not one.endswith(("(_do_shutdown)", ".shutdown_default_executor"))]
    text = "this process ends now, though tasks have left behind what does not end: %s"
    logger.warning(text, log_lines.names(left) or "an exit hook")


async def _until_checked(dsn: str, worker: Worker, health: HealthFile | None) -> None:
    """Return when the database has answered and has the right schema. While it is away, wait, and say so once."""
    outage, backoff = Outage(), Backoff(first=0.2, longest=EVERY)
    while True:
        try:
            await asyncio.to_thread(check, dsn, schema=worker.app.settings.schema)
        except DatabaseUnavailable as error:
            outage.met(_CHECK, error)
            if health is not None:
                health.write({**asdict(worker.snapshot()), "state": "waiting for the database"})
            await asyncio.sleep(backoff.pause())
        else:
            outage.over(_CHECK)
            return


def _stop(worker: Worker, grace: float | None) -> None:
    worker.stop()
    if grace is not None:  # else the supervisor has said it
        running.sayer()(logging.INFO, f"stopping: running jobs have {grace:g} s; once more to give them back now")
