"""Which queues the next claim looks into: all of them, or, with weights, one at a time in fair turns."""

from collections.abc import Mapping, Sequence

from leasehold.errors import ConfigError

Queues = Sequence[str] | Mapping[str, int] | None


class QueuePicker:
    """Takes turns between weighted queues (stride scheduling).

    Each queue's clock advances by 1/weight for every job taken from it, and the one furthest behind goes next: with
    weights 3 and 1 three of four jobs come from the first, and neither ever starves. A queue found empty is left out
    until somebody says that it has work, and then starts level with the others instead of catching up.

    Without weights a claim looks into all queues at once and takes the most urgent and oldest jobs of them.
    """

    def __init__(self, queues: Queues) -> None:
        self._all = None if queues is None else list(queues)
        self._weights = dict(queues) if isinstance(queues, Mapping) else {}
        self._clocks = dict.fromkeys(self._weights, 0.0)
        self._empty: set[str] = set()

    def next(self) -> Sequence[str] | None:
        """The queues to claim from; None stands for all that exist."""
        if not self._weights:
            return self._all
        ready = [queue for queue in self._weights if queue not in self._empty]
        return [min(ready or self._weights, key=self._clocks.__getitem__)]

    def took(self, queues: Sequence[str] | None, jobs: int, *, end_reached: bool) -> bool:
        """Note what a claim brought; True when there is still a queue that may have work."""
        if not self._weights or queues is None:
            return not end_reached
        (queue,) = queues
        self._clocks[queue] += jobs / self._weights[queue]
        if end_reached:
            self._empty.add(queue)
        return len(self._empty) < len(self._weights)

    def hint(self, queue: str) -> None:
        """This queue has work; an empty name: any of them may."""
        for name in [queue] if queue else list(self._empty):
            if name in self._empty:
                self._empty.discard(name)
                awake = [self._clocks[other] for other in self._weights if other not in self._empty and other != name]
                self._clocks[name] = max(self._clocks[name], min(awake, default=0.0))


def parse_queues(text: str) -> Queues:
    """`mail,reports` or, with weights, `mail:3,reports:1`."""
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
