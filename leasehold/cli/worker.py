"""`leasehold worker`: run jobs."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Coroutine
from typing import Annotated, Any

import typer

from leasehold.app import App
from leasehold.cli.console import say
from leasehold.cli.loading import load_app
from leasehold.db.migrate import check
from leasehold.worker import Worker, WorkerOptions


def command(
    app: Annotated[str, typer.Argument(help="Where the App is: module:app.", show_default=False)],
    *,
    queues: Annotated[
        str | None, typer.Option("--queues", "-q", help="Take jobs from these queues only, comma-separated.")
    ] = None,
    slots: Annotated[int, typer.Option("--slots", "-s", help="How many jobs run at the same time.")] = 10,
    prefetch: Annotated[int, typer.Option("--prefetch", help="How many more to claim ahead.")] = 0,
    grace: Annotated[float, typer.Option("--grace", help="Seconds to finish running jobs after SIGTERM.")] = 30.0,
    dsn: Annotated[str | None, typer.Option("--dsn", help="The database; LEASEHOLD_DSN when left out.")] = None,
    schema: Annotated[str | None, typer.Option("--schema", help="Its schema; LEASEHOLD_SCHEMA when left out.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
) -> None:
    """Claim jobs and run them, until SIGTERM or Ctrl-C.

    The first signal stops claiming and lets running jobs finish within the grace period; the second gives
    them back at once.
    """
    # The module makes its App when it is imported, so what is given here must be in place before.
    if dsn:
        os.environ["LEASEHOLD_DSN"] = dsn
    if schema:
        os.environ["LEASEHOLD_SCHEMA"] = schema
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    loaded = load_app(app)
    names = [name.strip() for name in queues.split(",") if name.strip()] if queues else None
    options = WorkerOptions(queues=names, slots=slots, prefetch=prefetch, grace=grace)
    run_async(serve(loaded, options))


async def serve(app: App, options: WorkerOptions) -> None:
    """Run a worker under signals, until it has stopped."""
    database = await app.adatabase()
    check(database.dsn, schema=app.settings.schema)
    worker = Worker(app, options)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, worker, options.grace)
    try:
        await worker.run()
    finally:
        await app.aclose()


def _stop(worker: Worker, grace: float) -> None:
    worker.stop()
    say(f"stopping: running jobs have {grace:g} s; once more to give them back now")


def run_async(main: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop where it is installed: it halves what the event loop costs a job."""
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415 (not on every platform)

        uvloop.run(main)
        return
    asyncio.run(main)
