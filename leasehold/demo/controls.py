"""What others can do to a demo that runs: see its scoreboard, and kill a worker. They meet in a file."""

import contextlib
import json
import os
import signal
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from leasehold.errors import ConfigError, LeaseholdError

VARIABLE = "LEASEHOLD_DEMO"
"""Tells a server that it belongs to a demo: the path of the file."""

FILE = "demo.json"
"""Its name, in LEASEHOLD_HOME."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker process of the demo."""

    pid: int
    born: int
    """When the process started, as the kernel counts: another one with its pid is not it."""
    name: str = ""
    """As the database knows it, once it does."""
    running: int = 0
    """Jobs that it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a demo stands."""

    pid: int
    born: int
    url: str
    workers: list[Worker] = field(default_factory=list)
    scoreboard: dict[str, Any] = field(default_factory=dict)


class Controls:
    """Reads and writes the file. What the dashboard's button and `leasehold demo kill` use."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def from_env(cls) -> "Controls | None":
        """Of the demo that this process is a part of."""
        path = os.environ.get(VARIABLE)
        return cls(Path(path)) if path else None

    def write(self, standing: Standing) -> None:
        """Put the file in place, whole."""
        draft = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        draft.write_text(json.dumps(asdict(standing)), encoding="utf-8")
        draft.replace(self.path)

    def remove(self) -> None:
        """The demo has ended."""
        self.path.unlink(missing_ok=True)

    def read(self) -> Standing:
        """How the demo stands; an error if none runs here."""
        try:
            parts = json.loads(self.path.read_text(encoding="utf-8"))
            workers = [Worker(**worker) for worker in parts.pop("workers")]
            standing = Standing(workers=workers, **parts)
        except (OSError, ValueError, TypeError, KeyError):
            raise self._none() from None
        if born(standing.pid) != standing.born:
            raise self._none()
        return standing

    def running(self) -> Standing | None:
        """The same; None if none runs here."""
        with contextlib.suppress(LeaseholdError):
            return self.read()
        return None

    def scoreboard(self) -> dict[str, Any]:
        """Names and figures, in the order to be shown."""
        return self.read().scoreboard

    def kill(self) -> dict[str, Any]:
        """Kill the worker that runs the most jobs with SIGKILL, and say which."""
        for worker in sorted(self.read().workers, key=lambda worker: -worker.running):
            if _kill(worker):
                return {"worker": worker.name, "pid": worker.pid, "running": worker.running}
        raise LeaseholdError("no worker of the demo is alive at this moment", hint="one is being started: try again")

    def _none(self) -> ConfigError:
        return ConfigError(f"no demo runs in {self.path.parent}", hint="start one there: leasehold demo")


def born(pid: int) -> int:
    """When a process started, in ticks since the machine did; 0: there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    fields = stat.rpartition(")")[2].split()  # a name may hold anything, spaces and brackets too
    return int(fields[19]) if fields[0] != "Z" else 0


def _kill(worker: Worker) -> bool:
    """Kill it and no other: the descriptor stays the process's own even if its pid is given away."""
    try:
        descriptor = os.pidfd_open(worker.pid)
    except OSError:
        return False
    try:
        if born(worker.pid) != worker.born:
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
