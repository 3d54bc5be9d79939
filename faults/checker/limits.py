"""Laws of what may run at once. Along seq a job's claim comes after the end that made room for it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from faults.checker.history import Event, History
from faults.checker.violation import Violation


def limits_hold_at_all_times(history: History) -> Iterator[Violation]:
    """Under each limit no more jobs have a live lease than it allows, whenever one is claimed."""
    for limit in history.expected.get("limits", ()):
        running: dict[str, Event] = {}
        worst = 0
        for event in history.events:
            if not _applies(limit, event):
                continue
            if event.after != "running":
                running.pop(event.job, None)
                continue
            running[event.job] = event
            if event.claims and len(running) > max(worst, limit["max"]):
                worst = max(worst, sum((other.expires or 0) > event.at for other in running.values()))
        if worst > limit["max"]:
            name = f"{limit['scope']} {limit.get('name', '')}".strip()
            yield Violation("limits_hold_at_all_times", name, f"{worst} at once, {limit['max']} were allowed")


def _applies(limit: Mapping[str, Any], event: Event) -> bool:
    name = limit.get("name", "")
    match limit["scope"]:
        case "queue":
            return bool(event.queue == name)
        case "kind":
            return bool(event.kind == name)
        case "key":
            return event.exclusive is not None and event.exclusive.startswith(name)
        case _:
            return True


def one_runs_per_exclusive_key(history: History) -> Iterator[Violation]:
    """At most one job of an exclusive key runs at a time."""
    running: dict[str, set[str]] = defaultdict(set)
    for event in history.events:
        if event.exclusive is None:
            continue
        if event.after != "running":
            running[event.exclusive].discard(event.job)
            continue
        others = running[event.exclusive] - {event.job}
        running[event.exclusive].add(event.job)
        if others and event.claims:
            detail = f"{event.job} was claimed while {', '.join(sorted(others))} ran"
            yield Violation("one_runs_per_exclusive_key", event.exclusive, detail)
