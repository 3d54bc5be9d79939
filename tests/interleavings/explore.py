"""All interleavings of two programs, judged."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Final
from zlib import crc32

from tests.interleavings.calls import CALLS, FRUITLESS, Program
from tests.interleavings.driver import Driver, Outcome, Turn, orders
from tests.interleavings.starts import FIRST, OVER, SECOND, STARTS, Start
from tests.timing import FULL

MANY: Final = 200
TAKE: Final = ("", "(b'f',)")
"""What calls answer that take jobs, where they took none."""
STARTS_IN_CI: Final = 2
"""How many of the starts in which the order of the two matters are looked at for each pair; the full run takes all."""

# Results of no serial order, and why they are right. Only claims and sweeps are allowed it.
PASSED_OVER: Final = "a claim skips a job that another session is writing, and takes the next: order is not promised"
EMPTY_HANDED: Final = (
    "a claim saw a busy key or an exhausted limit, or a sweep an expired job, that another session was writing:"
    " it does not wait for it, and that session notifies the workers that do"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An interleaving that no serial order explains, or that broke a law."""

    start: str
    stops: tuple[int, int]
    outcome: Outcome
    broken: tuple[str, ...]
    serial: tuple[Outcome, ...]

    def __str__(self) -> str:
        lines = [f"start {self.start!r}, stopped at gates {self.stops}: {self.outcome}"]
        lines += [f"  broken: {law}" for law in self.broken]
        lines += [f"  serial: {outcome}" for outcome in self.serial if not self.broken]
        return "\n".join(lines)


def explore(driver: Driver, first: str, second: str, *, starts: Mapping[str, Start] | None = None) -> Iterator[Finding]:
    """Stop the first at each of its gates in turn, run the second, let the first go on."""
    met = _meetings(driver, first, second, starts or STARTS)
    for name, start, programs, serial in met if FULL or starts else islice(met, STARTS_IN_CI):
        chance = random.Random(f"{first} {second} {name}")
        for stop in range(1, MANY):
            outcome = driver.interleave(start, programs, (stop, 0))
            if outcome is None:
                break
            tried = {(stop, 0): outcome}
            if FULL:  # Both are stopped half-way, and take turns.
                stops = (stop, chance.randint(1, 30))
                both = driver.interleave(start, programs, stops)
                assert both is not None
                tried[stops] = both
            for stops, found in tried.items():
                driver.interleavings += 1
                broken = driver.broken(start, programs, stops, found)
                if broken or (found not in serial and not _allowed(driver, start, programs, found)):
                    yield Finding(start=name, stops=stops, outcome=found, broken=tuple(broken), serial=serial)


def _meetings(
    driver: Driver, first: str, second: str, starts: Mapping[str, Start]
) -> Iterator[tuple[str, Start, tuple[Program, Program], tuple[Outcome, ...]]]:
    """The starts from which it matters who comes first, in an order that differs from pair to pair."""
    for name in sorted(starts, key=lambda name: crc32(f"{first} {second} {name}".encode())):
        start = starts[name]
        programs = (CALLS[first](start, "a"), CALLS[second](start, "b"))
        turns = orders(len(programs[0]), len(programs[1]))
        serial = tuple(driver.serial(start, programs, [Turn(who) for who in order]) for order in turns)
        assert not any("error" in answer for outcome in serial for answer in outcome.first + outcome.second), serial
        if FULL or len(set(serial)) > 1:
            yield name, start, programs, serial


def _allowed(driver: Driver, start: Start, programs: Sequence[Program], outcome: Outcome) -> bool:
    """Whether a serial order explains it whose claims do not see a job, or whose claims and sweeps are fruitless."""
    for order in orders(len(programs[0]), len(programs[1])):
        calls = [list(program) for program in programs]
        choices = []
        for who in order:
            fruitless = FRUITLESS.get(calls[who].pop(0).sql)
            others = [Turn(who, unseen=job) for job in (FIRST, SECOND)] if fruitless in TAKE else []
            empty = [Turn(who, skipped=fruitless)] if fruitless is not None and _in_the_way(start) else []
            choices.append([Turn(who), *others, *empty])
        for turns in product(*choices):
            if driver.serial(start, programs, turns) == outcome:
                skipped = any(turn.skipped is not None for turn in turns)
                driver.allowed[EMPTY_HANDED if skipped else PASSED_OVER] += 1
                return True
    return False


def _in_the_way(start: Start) -> bool:
    """Whether there is anything but the job itself that a claim or a sweep could find another session writing."""
    keys = any(job.get("exclusive_key") for job in start.jobs)
    return bool(start.limits) or keys or any(job.get("lease_expires_at") == OVER for job in start.jobs)
