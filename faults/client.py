"""A client: enqueues jobs with idempotency keys until each is acknowledged, and logs every try.

    python -m faults.client NAME [--count N] [--batch N] [--rate N] [--url URL …] [--kind KIND --payload JSON]

Without a count it goes on until SIGTERM. With URLs it speaks HTTP, to another server when one does not answer.
"""

import argparse
import contextlib
import itertools
import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import httpx

from faults import tasks
from faults.log import Log
from leasehold.client import Client
from leasehold.db.database import Database
from leasehold.errors import ApiError, ApiUnavailable, DatabaseUnavailable
from leasehold.intent import Intent

Send = Callable[[Sequence[str]], list[str]]
"""Enqueues a job for each key; returns their ids."""

UNKNOWN: Final = (ApiUnavailable, ApiError, DatabaseUnavailable, httpx.HTTPError)
"""What a try may raise and still have happened."""

_TRY_SECONDS = 5.0
_HTTP_SECONDS = 0.5
"""Soon over: a server that was killed comes back at the same address, and there are others."""
_PATIENCE = 60.0
"""Seconds for which the last jobs are tried after SIGTERM."""


class Stop:
    """Set by SIGTERM."""

    def __init__(self) -> None:
        self.at: float | None = None
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self.at = time.monotonic()

    @property
    def asked(self) -> bool:
        """Whether to begin no more jobs."""
        return self.at is not None

    @property
    def overdue(self) -> bool:
        """Whether to give up those that were begun."""
        return self.at is not None and time.monotonic() > self.at + _PATIENCE


def through_python(kind: str, payload: dict[str, Any], dsn: str) -> Send:
    """By the Python API: one call for one key, one for many."""
    tasks.app._database = Database(  # noqa: SLF001 (the pool that the app would make, but less patient)
        dsn, schema="leasehold", prepare=tasks.app.settings.prepare, wait=_TRY_SECONDS
    )
    task = tasks.app.find(kind)

    def intent(key: str) -> Intent:
        return task.using(idempotency_key=key).intent(**payload)

    def send(keys: Sequence[str]) -> list[str]:
        if len(keys) == 1:
            return [str(task.using(idempotency_key=keys[0]).enqueue(**payload).id)]
        return [str(job.id) for job in tasks.app.enqueue_many([intent(key) for key in keys])]

    return send


def through_http(kind: str, payload: dict[str, Any], urls: Sequence[str]) -> Send:
    """By the HTTP API, the servers in turns; one that did not answer is passed over for a second."""
    clients = {url: Client(url, timeout=_HTTP_SECONDS, try_timeout=_HTTP_SECONDS) for url in urls}
    turns: Iterator[str] = itertools.cycle(urls)
    down = dict.fromkeys(urls, 0.0)

    def send(keys: Sequence[str]) -> list[str]:
        now = time.monotonic()
        url = next(turns)
        for _ in urls:
            if down[url] < now:
                break
            url = next(turns)
        try:
            return [clients[url].submit(kind, payload, idempotency_key=key).job_id for key in keys]
        except ApiUnavailable:
            down[url] = time.monotonic() + 1
            raise

    return send


def enqueue(log: Log, send: Send, kind: str, keys: Sequence[str], stop: Stop) -> bool:
    """Try until all are acknowledged; False: it had to stop before that."""
    pause = 0.02
    while not stop.overdue:
        calls = [log.invoke("enqueue", key=key, kind=kind) for key in keys]
        try:
            ids = send(keys)
        except UNKNOWN as error:
            if isinstance(error, ApiError) and error.status != 429 and error.status < 500:
                raise  # refused: a defect of ours, and no fault
            for call in calls:
                log.unknown(call, error=f"{type(error).__name__}: {error}"[:200])
            rest(pause)
            pause = min(pause * 2, 0.5)
        else:
            for call, job in zip(calls, ids, strict=True):
                log.ok(call, job=job)
            return True
    return False


def rest(seconds: float) -> None:
    """Sleep; time.sleep() itself fails under libfaketime where the monotonic clock is left alone."""
    select.select([], [], [], seconds)


def main() -> None:
    """Enqueue until done."""
    parser = argparse.ArgumentParser(prog="python -m faults.client")
    parser.add_argument("name")
    parser.add_argument("--count", type=int)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rate", type=float, help="batches a second at most")
    parser.add_argument("--url", action="append")
    parser.add_argument("--kind", default="quick")
    parser.add_argument("--payload", type=json.loads, default={})
    options = parser.parse_args()
    stop = Stop()
    folder = Path(os.environ["FAULTS_FOLDER"])
    if options.url:
        send = through_http(options.kind, options.payload, options.url)
    else:
        send = through_python(options.kind, options.payload, os.environ["LEASEHOLD_DSN"])
    numbers = itertools.count() if options.count is None else iter(range(options.count))
    with Log(folder / f"client-{options.name}.jsonl", f"client {options.name}") as log, contextlib.closing(tasks.app):
        while not stop.asked and (keys := [f"{options.name}-{n}" for n in itertools.islice(numbers, options.batch)]):
            began = time.monotonic()
            enqueue(log, send, options.kind, keys, stop)
            if options.rate:
                rest(max(0.0, began + 1 / options.rate - time.monotonic()))


if __name__ == "__main__":
    main()
