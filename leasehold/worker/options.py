"""The settings of one worker."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from leasehold.durations import MAX_SECONDS
from leasehold.errors import ConfigError

Queues: TypeAlias = Sequence[str] | Mapping[str, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker claims and runs jobs."""

    queues: Queues = None
    """Take jobs from these queues only, all as one, or in turns by weight ({"mail": 3, "reports": 1}); None: all."""
    slots: int = 10
    """How many jobs run at the same time."""
    prefetch: int = 0
    """How many more may be claimed ahead, leased but not started."""
    grace: float = 30.0
    """Seconds that running jobs get to finish when the worker has to stop."""
    poll: float = 10.0
    """Seconds between claims while no notification arrives: the safety net under LISTEN."""
    max_jobs: int | None = None
    """Retire after this many jobs, to be replaced by a fresh process; what runs then may finish. None: never."""
    child_jobs: int | None = None
    """Replace a process of `executor="process"` tasks after this many jobs; None: never."""

    def __post_init__(self) -> None:
        if not 0 <= self.grace <= MAX_SECONDS:  # nor is NaN
            raise ConfigError(f"grace {self.grace} s is not between 0 and {MAX_SECONDS:.0f} s")
        if not 0 < self.poll <= 10:
            raise ConfigError(f"poll {self.poll} s is not between 0 and 10 s")
        for name, least in (("slots", 1), ("prefetch", 0)):
            if not least <= getattr(self, name) <= 10_000:
                raise ConfigError(f"{name} {getattr(self, name)} is not between {least} and 10000")
        for name in ("max_jobs", "child_jobs"):
            if (jobs := getattr(self, name)) is not None and jobs < 1:
                raise ConfigError(f"{name} {jobs} is less than 1")


def parse_queues(text: str) -> Queues:
    """Read `mail,reports` or, with weights, `mail:3,reports:1`."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise ConfigError(f"queues {text!r} names none", hint="write mail,reports or mail:3,reports:1")
    if not any(":" in name for name in names):
        return names
    weights: dict[str, int] = {}
    for part in names:
        name, _, weight = part.rpartition(":") if ":" in part else (part, "", "1")
        if not name or not weight.isdigit() or not 1 <= int(weight) <= 1000:
            raise ConfigError(f"queue {part!r} has no weight from 1 to 1000", hint="write mail:3,reports:1")
        weights[name] = int(weight)
    return weights
