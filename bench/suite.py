"""What every case is given, and how the cases are run one after the other."""

import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.contestants import LEASEHOLD, PEERS, Contestant
from bench.fleet import BenchError, at_work, client
from bench.lines import Line, not_run
from bench.machine import Watch
from bench.server import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line asked for."""

    repeats: int = 3
    small: bool = False
    full: bool = False
    """With what takes minutes: 10 M rows, a million jobs through one worker."""
    peers: bool = True
    seconds: float | None = None
    """How long each timed part takes, where it is time that bounds it."""
    sustained: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """One backlog, drained."""

    rate: float
    seconds: float
    statements: float
    wal: float
    worker_us: float
    server_us: float
    all_us: float
    foreign_cores: float


@dataclass(slots=True)
class Run:
    """The server and the options, with what most cases do."""

    server: Server
    options: Options
    raw: list[dict[str, Any]] = field(default_factory=list)
    """Every single measurement, for the JSON."""
    case: str = ""

    def size(self, full: int, small: int) -> int:
        return small if self.options.small else full

    def seconds(self, full: float, small: float) -> float:
        return self.options.seconds or (small if self.options.small else full)

    def rounds(self) -> range:
        return range(self.options.repeats)

    def in_turn(self, names: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """A B, B A, A B …: no contestant is always the first."""
        for number in self.rounds():
            for name in names if number % 2 == 0 else list(reversed(names)):
                yield number, name

    def peers(self) -> tuple[list[Contestant], dict[str, str]]:
        """Those that can be run, and why the others cannot."""
        if not self.options.peers:
            return [], {peer.name: "--no-peers" for peer in PEERS}
        here = [peer for peer in PEERS if peer.missing is None]
        return here, {peer.name: peer.missing for peer in PEERS if peer.missing is not None}

    def note(self, who: str, **figures: Any) -> None:
        """Keep a measurement and print it."""
        self.raw.append({"case": self.case, "who": who, "at": time.strftime("%H:%M:%S"), **figures})
        said = ", ".join(f"{name} {_short(value)}" for name, value in figures.items())
        say(f"  {who:24} {said}")

    def database(self, who: Contestant, name: str = "bench") -> str:
        """A new database with the contestant's tables."""
        if who.ours:
            return self.server.leasehold(name)
        if not self.server.exists(who.template):
            client(who, self.server.create(who.template), "schema")
        return self.server.create(name, who.template)

    def filled(self, who: Contestant, jobs: int) -> str:
        """A new database with so many queued jobs of the contestant, a copy of one that was filled once."""
        number = who.jobs(jobs)
        backlog = f"{who.template.replace('t_', 'b_', 1)}_{number}"
        if not self.server.exists(backlog):
            dsn = self.database(who, backlog)
            client(who, dsn, "bulk", number)
            with self.server.connect(backlog) as connection:
                connection.execute("vacuum analyze")
        self.server.checkpoint()
        return self.server.create("bench", backlog)

    def drain(self, who: Contestant, jobs: int, processes: int = 1, *, dsn: str | None = None) -> Drain:
        """From the first job's start to the moment that none is unfinished."""
        number = who.jobs(jobs)
        dsn = dsn or self.filled(who, jobs)
        query = who.unfinished.replace("select", "select /*suite*/", 1)
        with at_work(who, dsn, processes) as fleet, self.server.connect("bench") as look:
            self.server.forget_statements()
            wal = self.server.lsn()
            watch = Watch(self.server.pid, fleet.pids)
            fleet.go()
            fleet.wait(number, 120)
            deadline = time.time() + 30
            while (left := look.execute(query).fetchone()) != (0,):
                if time.time() > deadline:
                    raise BenchError(f"{who.name}: {left} jobs are not finished")
                time.sleep(0.002)
            ended = time.time()
            watch.stop()
            wal, statements = self.server.lsn() - wal, self.server.statements("bench")
            seconds = ended - fleet.first()
        found = Drain(
            rate=number / seconds, seconds=seconds, statements=statements / number, wal=wal / number,
            worker_us=watch.worker_cpu / number * 1e6, server_us=watch.server_cpu / number * 1e6,
            all_us=watch.all_cpu / number * 1e6, foreign_cores=watch.foreign_cores,
        )  # fmt: skip
        self.note(
            f"{who.name} x {processes}", rate=found.rate, statements=found.statements, wal=found.wal,
            worker_us=found.worker_us, server_us=found.server_us, foreign_cores=found.foreign_cores,
        )  # fmt: skip
        return found


Measure = Callable[[Run], list[Line]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One module of the suite."""

    name: str
    doc: str
    measure: Measure
    alternative: bool = False
    """Compares ways of building Leasehold: run only when it is named."""
    long: bool = False
    """Takes minutes: run when it is named, or with --full."""


REGISTRY: dict[str, Case] = {}


def case(name: str, *, alternative: bool = False, long: bool = False) -> Callable[[Measure], Measure]:
    """Enter a function into the registry; the first line of its docstring says what it shows."""

    def enter(measure: Measure) -> Measure:
        doc = (measure.__doc__ or "").strip().partition("\n")[0]
        REGISTRY[name] = Case(name=name, doc=doc, measure=measure, alternative=alternative, long=long)
        return measure

    return enter


def run_cases(run: Run, names: Sequence[str]) -> list[Line]:
    """All of them. What one of them cannot do is a line of its own, and the others go on."""
    lines = []
    for name in names:
        chosen = REGISTRY[name]
        run.case = name
        say(f"{name}: {chosen.doc}")
        began = time.monotonic()
        try:
            lines += chosen.measure(run)
        except BenchError as error:
            lines.append(not_run(str(error), what=name))
        except Exception:  # noqa: BLE001 (one broken case must not cost the others' figures)
            traceback.print_exc()
            lines.append(not_run("failed, see above", what=name))
        say(f"  {time.monotonic() - began:.0f} s")
    return lines


def attempt(run: Run, measure: Callable[[], float | Drain], who: str) -> Any:
    """A peer's failure is its own: it counts as not run."""
    try:
        return measure()
    except (BenchError, TimeoutError) as error:
        run.note(who, error=str(error)[:200])
        return None


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


__all__ = ["LEASEHOLD", "Case", "Drain", "Options", "Run", "attempt", "case", "run_cases", "say"]
