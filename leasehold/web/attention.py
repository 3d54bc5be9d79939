"""What needs attention, worst first."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlencode

from leasehold.db.store import ErrorGroup, JobRow, Law, WorkerRow
from leasehold.web.flow import QueueFacts
from leasehold.web.words import number, span

HOUR: Final = timedelta(hours=1)
_LATELY: Final = timedelta(hours=24)
_SLACK: Final = timedelta(seconds=5)
"""An expired lease is noticed by the next sweep; until then it is nothing to worry about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Something to look at."""

    tone: str
    """`bad` or `warn`."""
    title: str
    detail: str
    link: str
    """Below the dashboard's own path."""


def attention(
    *,
    now: datetime,
    queues: Sequence[QueueFacts],
    dead: tuple[Sequence[JobRow], bool],
    errors: Sequence[ErrorGroup],
    running: Sequence[JobRow],
    workers: Sequence[WorkerRow],
    unknown: Mapping[str, Sequence[str]],
    invariants: Sequence[Law] | None,
    holder: str | None,
    standby: bool,
) -> list[Item]:
    """Everything, the worst first. `unknown`: of queues, the kinds of waiting jobs that no live worker knows."""
    found = [
        *_invariants(invariants),
        *_dead(*dead),
        *_leases(running, now),
        *_queues(queues, unknown),
        *_workers(workers, now),
        *_errors(errors, now),
    ]
    if holder is not None:
        found.append(Item(tone="warn", title="Vacuum is held back", detail=holder, link="/system"))
    if standby:
        what = "it shows what it has received so far, and refuses changes"
        found.append(Item(tone="warn", title="This database is a standby", detail=what, link="/system"))
    return sorted(found, key=lambda item: item.tone != "bad")


def _invariants(found: Sequence[Law] | None) -> Iterator[Item]:
    for row in found or ():
        if not row.ok:
            title = f"Invariant broken: {row.name.replace('_', ' ')}"
            yield Item(tone="bad", title=title, detail=row.detail, link="/system")


def _dead(jobs: Sequence[JobRow], capped: bool) -> Iterator[Item]:
    if not jobs:
        return
    kinds = sorted({job.kind for job in jobs})
    shown = ", ".join(kinds[:3]) + (f" and {len(kinds) - 3} more" if len(kinds) > 3 else "")
    count = number(len(jobs), capped)
    what = "1 job died" if len(jobs) == 1 else f"{count} jobs died"
    yield Item(tone="bad", title=f"{what} in the last hour", detail=shown, link="/jobs?state=dead")


def _leases(running: Sequence[JobRow], now: datetime) -> Iterator[Item]:
    expired = [job for job in running if job.lease_expires_at is not None and job.lease_expires_at < now - _SLACK]
    if expired:
        what = "1 lease has" if len(expired) == 1 else f"{number(len(expired))} leases have"
        yield Item(
            tone="bad",
            title=f"{what} expired",
            detail="nobody has swept them yet: is any worker alive?",
            link="/workers",
        )


def _queues(queues: Sequence[QueueFacts], unknown: Mapping[str, Sequence[str]]) -> Iterator[Item]:
    for one in queues:
        row = one.row
        link = f"/jobs?{urlencode({'state': 'queued', 'queue': row.queue})}"
        if row.paused_at is not None:
            detail = " ".join(
                filter(None, [f"by {row.paused_by}" if row.paused_by else "", row.reason and f"“{row.reason}”"])
            )
            waiting = f"{number(row.ready, row.ready_capped)} jobs wait" if row.ready else "nothing waits"
            yield Item(
                tone="warn", title=f"{row.queue} is paused", detail=f"{waiting} · {detail}".rstrip(" ·"), link="/queues"
            )
        elif one.tone in {"bad", "warn"}:
            waiting = f"{number(row.ready, row.ready_capped)} ready, the oldest for {span(one.oldest_age)}"
            if kinds := unknown.get(row.queue):
                more = f" and {len(kinds) - 3} more" if len(kinds) > 3 else ""
                title = f"{', '.join(kinds[:3])}{more}: no live worker knows {'it' if len(kinds) == 1 else 'them'}"
                yield Item(tone="bad", title=title, detail=f"{row.queue}: {waiting}", link=link)
                continue
            yield Item(tone=one.tone, title=f"{row.queue}: {one.verdict}", detail=waiting, link=link)


def _workers(workers: Sequence[WorkerRow], now: datetime) -> Iterator[Item]:
    silent = [w for w in workers if not w.live and w.stopped_at is None and w.seen_at > now - _LATELY]
    for worker in silent[:3]:
        where = f"pid {worker.pid} on {worker.host}" if worker.host else worker.id
        said = span((now - worker.seen_at).total_seconds())
        yield Item(tone="warn", title="A worker is silent", detail=f"{where}, not heard of for {said}", link="/workers")
    if len(silent) > 3:
        yield Item(tone="warn", title=f"{len(silent) - 3} more workers are silent", detail="", link="/workers")
    if not any(worker.live for worker in workers):
        yield Item(
            tone="bad", title="No worker is alive", detail="what is queued waits: leasehold worker", link="/workers"
        )


def _errors(errors: Sequence[ErrorGroup], now: datetime) -> Iterator[Item]:
    recent = [group for group in errors if group.last_seen > now - HOUR and group.attempts >= 10]
    for group in sorted(recent, key=lambda one: -one.attempts)[:2]:
        name = group.error_class or "lease expired"
        query = urlencode({"kind": group.kind, "error": group.error_class or ""})
        yield Item(
            tone="warn",
            title=f"{name} in {group.kind}",
            detail=f"{number(group.attempts)} attempts of {number(group.jobs)} jobs",
            link=f"/jobs?{query}",
        )
