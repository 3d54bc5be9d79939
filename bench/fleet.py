"""Worker processes of one contestant: started, released together, watched, ended."""

import contextlib
import json
import mmap
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.contestants import Contestant


class BenchError(Exception):
    """Something could not be measured; the text says why."""


def client(who: Contestant, dsn: str, *args: object, timeout: float = 180) -> dict[str, Any]:
    """Let a contestant do one of its commands; what it printed."""
    command = [*who.command, *map(str, args)]
    done = subprocess.run(
        command, env={**os.environ, "DSN": dsn}, capture_output=True, text=True, timeout=timeout, check=False
    )
    if done.returncode:
        raise BenchError(f"{who.name} {args[0]}: {done.stderr.strip()[-300:] or done.returncode}")
    lines = done.stdout.splitlines()
    said: dict[str, Any] = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    return said


@dataclass(frozen=True, slots=True)
class _Seat:
    """One worker process and the file it shares with us."""

    process: subprocess.Popen[bytes]
    shared: memoryview
    path: Path


class Fleet:
    """Some workers of a contestant on one database."""

    def __init__(self, who: Contestant, dsn: str, folder: Path, count: int, **more: str) -> None:
        self.who = who
        self._log = folder / "workers.log"
        self._seats = [self._start(dsn, folder, more) for _ in range(count)]
        deadline = time.monotonic() + 60
        while any(seat.shared[3] != 1 for seat in self._seats):
            if time.monotonic() > deadline or any(seat.process.poll() is not None for seat in self._seats):
                self.stop()
                raise BenchError(f"{who.name}: a worker did not start: {self._log.read_text()[-300:]}")
            time.sleep(0.005)

    def _start(self, dsn: str, folder: Path, more: dict[str, str]) -> _Seat:
        descriptor, name = tempfile.mkstemp(dir=folder, prefix="stats-")
        os.write(descriptor, bytes(32))
        shared = memoryview(mmap.mmap(descriptor, 32)).cast("Q")
        os.close(descriptor)
        env = {
            **os.environ, "DSN": dsn, "STATS": name, "SLOTS": str(self.who.slots), "PREFETCH": str(self.who.prefetch),
            "MODE": self.who.mode, **more,
        }  # fmt: skip
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [*self.who.command, "worker"], env=env, stdout=subprocess.DEVNULL, stderr=log, process_group=0
            )
        return _Seat(process, shared, Path(name))

    @property
    def pids(self) -> list[int]:
        return [seat.process.pid for seat in self._seats]

    def go(self) -> None:
        """Release them all."""
        for seat in self._seats:
            seat.shared[3] = 2

    def count(self) -> int:
        """Jobs that have started."""
        return sum(seat.shared[0] for seat in self._seats)

    def first(self) -> float:
        """When the first job started, by the clock of the machine; 0 before."""
        return min((seat.shared[1] for seat in self._seats if seat.shared[1]), default=0) / 1e9

    def wait(self, jobs: int, seconds: float) -> float:
        """When so many jobs have started; raises if that takes longer than `seconds`."""
        deadline = time.time() + seconds
        while self.count() < jobs:
            if time.time() > deadline:
                raise BenchError(f"{self.who.name}: {self.count():,} of {jobs:,} jobs in {seconds:.0f} s")
            if any(seat.process.poll() is not None for seat in self._seats):
                raise BenchError(f"{self.who.name}: a worker ended: {self._log.read_text()[-300:]}")
            time.sleep(0.003)
        return time.time()

    def delays(self) -> list[float]:
        """Seconds from the enqueue to the start, of the jobs that carried the time."""
        found = []
        for seat in self._seats:
            path = Path(f"{seat.path}.delays")
            if path.exists():
                found += [float(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return found

    def stop(self) -> None:
        """End them at once: nothing is measured any more."""
        for seat in self._seats:
            if seat.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(seat.process.pid, signal.SIGKILL)
            seat.process.wait()


@contextmanager
def at_work(who: Contestant, dsn: str, count: int = 1, **more: str) -> Iterator[Fleet]:
    """Workers that are connected and wait for `go`."""
    with tempfile.TemporaryDirectory(prefix="leasehold-bench-fleet-") as folder:
        fleet = Fleet(who, dsn, Path(folder), count, **more)
        try:
            yield fleet
        finally:
            fleet.stop()
