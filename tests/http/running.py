"""Real API servers, each a process of its own."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from faults.waiting import happens
from leasehold.db.database import Database
from leasehold.tokens import make_token
from tests.http.raw import exchange, request

ROOT = Path(__file__).parents[2]
SCOPES = ("submit", "read", "operate")

PATIENT = {"LEASEHOLD_API_DATABASE_SECONDS": "30"}
"""A call that a busy machine delays is no fault of the server; tests of a database that is away name fewer seconds."""


@dataclass(frozen=True)
class Served:
    """A running API server."""

    dsn: str
    port: int
    token: str | None
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def memory(self, which: str = "VmRSS") -> int:
        """Bytes of memory that the process occupies; VmHWM: the most that it ever did."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(f"{which}:"))


def token_for(dsn: str, *scopes: str, **options: Any) -> str:
    """A new token, with all scopes unless some are named."""
    database = Database(dsn, schema="leasehold")
    try:
        made = make_token(uuid4())
        call = database.store.create_token(made.id, "test", made.hash(), scopes=scopes or SCOPES, **options)
        database.run(call)
        return made.reveal()
    finally:
        database.close()


@contextmanager
def serving(dsn: str, *options: str, token: bool | str | None = None, **env: str) -> Iterator[Served]:
    """Start `leasehold serve`, wait until it is ready, and kill it at the end if it still lives."""
    text = token_for(dsn) if token is True else token or None
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        for _ in range(3):  # another process may take the port before the server does
            served = _start(dsn, options, env, text, log)
            if _ready(served):
                break
        else:
            raise AssertionError(f"the server does not start:\n{log.read_text()}")
        try:
            yield served
        finally:
            _end(served)


def _start(dsn: str, options: tuple[str, ...], env: dict[str, str], token: str | None, log: Path) -> Served:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    command = [sys.executable, "-m", "leasehold", "serve", "--port", str(port), *options]
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **PATIENT, "LEASEHOLD_DSN": dsn, **env}, stdout=out, stderr=out
        )
    return Served(dsn, port, token, process, log)


def _ready(served: Served) -> bool:
    if happens(lambda: served.process.poll() is not None or _answers(served), within=60):
        return served.process.poll() is None
    _end(served)
    return False


def _answers(served: Served) -> bool:
    try:
        answer = exchange(served.port, request(b"GET", b"/readyz"), timeout=5)
    except OSError:
        return False
    return answer is not None and answer.status == 200


def _end(served: Served) -> None:
    if served.process.poll() is None:
        served.process.send_signal(signal.SIGCONT)
        served.process.kill()
    served.process.wait()
