"""What other processes do to a running demo, through a file: read its scoreboard, and kill a worker."""

import contextlib
import json
import os
import signal
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from leasehold.errors import ConfigError, LeaseholdError


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoWorker:
    """A worker process of the demo."""

    pid: int
    born: int  # when the process started, as the kernel counts: another one with its pid is not it
    name: str = ""  # as the database knows it, once it does
    running: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The state of a running demo."""

    pid: int
    born: int
    url: str
    workers: list[DemoWorker] = field(default_factory=list)
    scoreboard: dict[str, Any] = field(default_factory=dict)


class Controls:
    """Reads and writes the file, for the dashboard's button and `leasehold demo kill`."""

    def __init__(self, home: Path) -> None:
        self.path = home.absolute() / "demo.json"

    def write(self, standing: Standing) -> None:
        """Put the file in place, whole."""
        draft = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        draft.write_text(json.dumps(asdict(standing)), encoding="utf-8")
        draft.replace(self.path)

    def running(self) -> Standing | None:
        """Return the state of the demo; None if none runs here."""
        try:
            parts = json.loads(self.path.read_text(encoding="utf-8"))
            workers = [DemoWorker(**worker) for worker in parts.pop("workers")]
            standing = Standing(workers=workers, **parts)
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return standing if born(standing.pid) == standing.born else None

    def read(self) -> Standing:
        """Return the state of the demo; raise an error if none runs here."""
        standing = self.running()
        if standing is None:
            raise ConfigError(f"no demo runs in {self.path.parent}", hint="start one there: leasehold demo")
        return standing

    def scoreboard(self) -> dict[str, Any]:
        """Return names and figures, in the order to be shown."""
        return self.read().scoreboard

    def kill(self) -> dict[str, Any]:
        """Kill the worker that runs the most jobs with SIGKILL, and return which."""
        for worker in sorted(self.read().workers, key=lambda worker: -worker.running):
            if _kill(worker):
                return {"worker": worker.name, "pid": worker.pid, "running": worker.running}
        raise LeaseholdError("no worker of the demo is alive at this moment", hint="one is being started: try again")


def born(pid: int) -> int:
    """Return when a process started, in ticks since the machine did; 0: there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    fields = stat.rpartition(")")[2].split()  # a name may hold anything, spaces and brackets too
    return int(fields[19]) if fields[0] != "Z" else 0


def _kill(worker: DemoWorker) -> bool:
    """Kill it and no other: the descriptor stays the process's own even if its pid is given to another."""
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(worker.pid)
        try:
            if born(worker.pid) == worker.born:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                return True
        finally:
            os.close(descriptor)
    return False
