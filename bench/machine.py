"""Processor time and memory, read from /proc: of some processes with all their children, and of all other processes."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    seconds: float
    reaped: float


def _processes() -> dict[int, _Process]:
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            own, reaped = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
            found[int(folder.name)] = _Process(int(fields[1]), own / TICK, reaped / TICK)
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """What these processes and their children have used, those that have ended included."""
    processes = _processes()
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    total, waiting, seen = 0.0, list(pids), set()
    while waiting:
        pid = waiting.pop()
        if pid in processes and pid not in seen:
            seen.add(pid)
            total += processes[pid].seconds + processes[pid].reaped
            waiting += children.get(pid, [])
    return total


def busy_seconds() -> float:
    """What all processors together have spent on anything."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq = map(int, fields[:7])
    return (user + nice + system + irq + softirq) / TICK


def resident_bytes(pid: int) -> int:
    """How much memory a process occupies."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Watch:
    """From its making to `stop`: the clock, and who used the processors. Foreign: neither the suite nor its server."""

    server: int
    workers: list[int] = field(default_factory=list)
    seconds: float = 0.0
    worker_cpu: float = 0.0
    server_cpu: float = 0.0
    all_cpu: float = 0.0
    foreign_cores: float = 0.0
    _began: tuple[float, float, float, float, float] = (0.0, 0.0, 0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        self._began = self._now()

    def stop(self) -> "Watch":
        """Fill in the figures. They may be asked for again later."""
        wall, busy, ours, server, workers = (now - then for now, then in zip(self._now(), self._began, strict=True))
        self.seconds, self.all_cpu, self.server_cpu, self.worker_cpu = wall, busy, server, workers
        self.foreign_cores = max(0.0, (busy - ours) / wall) if wall else 0.0
        return self

    def _now(self) -> tuple[float, float, float, float, float]:
        ours, server = cpu_seconds([os.getpid(), self.server]), cpu_seconds([self.server])
        return time.perf_counter(), busy_seconds(), ours, server, cpu_seconds(self.workers)
