"""How a worker is doing, as plain data."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

State = Literal["starting", "working", "stuck", "waiting for the database", "draining"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A worker at one moment."""

    worker: str
    pid: int
    state: State
    running: int
    """Jobs in slots."""
    slots: int
    finished: int
    """Jobs that this worker has run to an outcome, whichever."""
    at: float
    """Unix time."""
    stuck: dict[str, str] = field(default_factory=dict)
    """Which of event loop, claimer, finisher and keeper have not moved lately, and what they wait for."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)
