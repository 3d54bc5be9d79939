"""The processes of a run: real `leasehold worker`s, API servers and clients, which are killed, stopped and replaced."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from faults.forks import Forked, Forks
from faults.servers import free_port
from faults.waiting import until

ROOT = Path(__file__).parents[1]

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


_starter = ThreadPoolExecutor(1, "faults-starter")
"""Starts every process. The signal of `_die_with_us` comes when the thread ends that started it: this one ends last."""


def _die_with_us() -> None:
    """In the child: whatever ends the run must not leave processes behind."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Member:
    """One process, and the next one in its place."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], output: Path) -> None:
        self.name = name
        self._command = list(command)
        self._env = dict(env)
        self._output = output
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self.forks: Forks | None = None
        """Who starts it, if not we."""
        self.url = ""
        """Where it serves, if it is an API server."""

    @property
    def pid(self) -> int:
        """Its process number, or 0 if it was never started."""
        return self._process.pid if self._process is not None else 0

    @property
    def alive(self) -> bool:
        """Whether it runs, or stands still."""
        return self._process is not None and self._process.poll() is None

    def said(self, after: int = 0) -> str:
        """What it has printed, and those before it in its place; after so many bytes."""
        if not self._output.exists():
            return ""
        with self._output.open("rb") as file:
            file.seek(after)
            return file.read().decode(errors="replace")

    @property
    def printed(self) -> int:
        """How many bytes it has printed."""
        return self._output.stat().st_size if self._output.exists() else 0

    def worked(self, history: Path) -> bool:
        """Whether this process, not its predecessor, has begun a job."""
        return any(history.glob(f"effects-{self.pid}-*"))

    @property
    def returncode(self) -> int | None:
        """How it ended; None while it has not."""
        return None if self._process is None else self._process.poll()

    def start(self, **env: str) -> "Member":
        """Start it, or another in its place; what is given here is for this one only."""
        if self.forks is not None:
            whole = {**os.environ, **self._env, **env}
            self._process = self.forks.start(self._command[1:], whole, self._output)
        else:
            self._process = _starter.submit(self._popen, env).result()
        return self

    def _popen(self, env: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        with self._output.open("ab") as output:
            return subprocess.Popen(
                self._command, cwd=ROOT, env={**os.environ, **self._env, **env}, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, preexec_fn=_die_with_us,  # noqa: PLW1509 (no threads are started here)
            )  # fmt: skip

    def send(self, number: int) -> None:
        """Send it a signal."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it, and return when it is gone."""
        self.send(signal.SIGKILL)
        self.wait(30)

    def end(self, within: float = 60) -> int | None:
        """Let it end in its own way."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        return self.wait(within)

    def wait(self, within: float) -> int | None:
        """Wait for its end."""
        return None if self._process is None else self._process.wait(within)

    def ready(self, within: float = 60) -> "Member":
        """Wait until an API server answers."""
        until(self._answers, f"{self.name} serves", within=within)
        return self

    def _answers(self) -> bool:
        if not self.alive:
            raise RuntimeError(f"{self.name} ended with {self.returncode}: see {self._output}")
        try:
            with urlopen(f"{self.url}/readyz", timeout=5) as answer:  # noqa: S310 (our own server)
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False


class Fleet:
    """All of them; none outlives the run."""

    program = "leasehold"
    """The module that workers and servers are started by, unless another is named."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder = folder
        self._env = dict(env)
        self.members: list[Member] = []
        self.forks: Forks | None = None
        """Who starts workers and servers from now on; None: each imports everything itself."""

    def fork(self) -> None:
        """Have a process start them that has imported everything: where there are hundreds."""
        self.forks = Forks(ROOT)

    def worker(
        self, name: str, dsn: str, *options: str, slots: int = 10, app: str = "faults.tasks:app",
        program: str = "", **env: str,
    ) -> Member:  # fmt: skip
        """A worker, not started yet."""
        command = ["-m", program or self.program, "worker", app, "--slots", str(slots), "--grace", "5", *options]
        return self._add(name, command, dsn, env)

    def server(self, name: str, dsn: str, *, program: str = "", **env: str) -> Member:
        """An API server, not started yet."""
        port = free_port()
        member = self._add(name, ["-m", program or self.program, "serve", "--port", str(port)], dsn, env)
        member.url = f"http://127.0.0.1:{port}"
        return member

    def command(self, name: str, *arguments: str) -> Member:
        """A command of `leasehold`, not started yet; it is not one of those that live."""
        member = self._add(name, ["-m", "leasehold", *arguments], "", {})
        self.members.remove(member)
        return member

    def client(self, name: str, dsn: str, *options: str) -> Member:
        """A client, not started yet; it ends when it has enqueued all, or at SIGTERM."""
        return self._add(name, ["-m", "faults.client", name, *options], dsn, {})

    def close(self) -> None:
        """Kill whatever still lives."""
        for member in self.members:
            if member.alive:
                with suppress(ProcessLookupError):
                    member.send(signal.SIGCONT)
                    member.kill()
        if self.forks is not None:
            self.forks.close()

    def _add(self, name: str, arguments: Sequence[str], dsn: str, env: Mapping[str, str]) -> Member:
        full = {**self._env, "LEASEHOLD_DSN": dsn, **env}
        member = Member(name, [sys.executable, *arguments], full, self._folder / f"{name}.out")
        member.forks = self.forks
        self.members.append(member)
        return member
