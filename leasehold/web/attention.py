"""What needs attention, worst first."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple
from urllib.parse import urlencode

from leasehold.db.store import ErrorGroup, JobRow, Law, System, WorkerRow
from leasehold.web.flow import QueueFacts
from leasehold.web.words import number, span

HOUR: Final = timedelta(hours=1)


class Item(NamedTuple):
    """Something that needs attention."""

    tone: Literal["bad", "warn"]
    title: str
    detail: str
    link: str  # below the dashboard's own path
    key: str = ""  # the text by which it differs from others with its title


def attention(
    *,
    now: datetime,
    queues: Sequence[QueueFacts],
    dead: tuple[Sequence[JobRow], bool],
    errors: Sequence[ErrorGroup],
    running: Sequence[JobRow],
    workers: Sequence[WorkerRow],
    unknown: Mapping[str, Sequence[str]],
    invariants: Sequence[Law],
    server: System | None,
) -> list[Item]:
    """Return everything, the worst first. `unknown`: of queues, the kinds of waiting jobs that no live worker knows."""
    broken = [law for law in invariants if not law.ok]
    found = [
        *(Item("bad", f"Invariant broken: {law.name.replace('_', ' ')}", law.detail, "/system") for law in broken),
        *_dead(*dead),
        *_leases(running, now),
        *(item for one in queues for item in _queue(one, unknown.get(one.row.queue, ()))),
        *_workers(workers, now),
        *_errors(errors, now),
        *(_server(server) if server is not None else ()),
    ]
    return sorted(found, key=lambda item: item.tone != "bad")


def _dead(jobs: Sequence[JobRow], capped: bool) -> Iterator[Item]:
    if jobs:
        what = "1 job" if len(jobs) == 1 else f"{number(len(jobs), capped)} jobs"
        yield Item("bad", f"{what} died in the last hour", _some({job.kind for job in jobs}), "/jobs?state=dead")


def _leases(running: Sequence[JobRow], now: datetime) -> Iterator[Item]:
    due = now - timedelta(seconds=5)  # the next sweep finds it; until then it needs no attention
    expired = [job for job in running if job.lease_expires_at is not None and job.lease_expires_at < due]
    if expired:
        what = "1 lease has" if len(expired) == 1 else f"{number(len(expired))} leases have"
        yield Item("bad", f"{what} expired", "no sweep has returned them yet: is any worker alive?", "/workers")


def _queue(one: QueueFacts, unknown: Sequence[str]) -> Iterator[Item]:
    row = one.row
    ready = number(row.ready, row.ready_capped)
    if row.paused_at is not None:
        detail = f"{ready} jobs wait" if row.ready else "nothing waits"
        why = [f"by {row.paused_by}" if row.paused_by else "", f"“{row.reason}”" if row.reason else ""]
        detail += f" · {' '.join(filter(None, why))}" if any(why) else ""
        yield Item("warn", f"{row.queue} is paused", detail, "/queues")
    elif one.tone in {"bad", "warn"} or unknown:  # which no worker takes, however lately it came
        link = f"/jobs?{urlencode({'state': 'queued', 'queue': row.queue})}"
        detail = f"{ready} ready, the oldest for {span(one.oldest_age)}"
        if unknown:
            title = f"{_some(unknown)}: no live worker knows {'it' if len(unknown) == 1 else 'them'}"
            yield Item("bad", title, f"{row.queue}: {detail}", link)
        else:
            yield Item("bad" if one.tone == "bad" else "warn", f"{row.queue}: {one.outlook}", detail, link)


def _workers(workers: Sequence[WorkerRow], now: datetime) -> Iterator[Item]:
    silent = [w for w in workers if not w.live and w.stopped_at is None and w.seen_at > now - timedelta(hours=24)]
    for worker in silent[:3]:
        where = f"pid {worker.pid} on {worker.host}" if worker.host else worker.id
        said = span((now - worker.seen_at).total_seconds())
        yield Item("warn", "A worker is silent", f"{where}, not heard of for {said}", "/workers", worker.id)
    if len(silent) > 3:
        yield Item("warn", f"{len(silent) - 3} more workers are silent", "", "/workers")
    if not any(worker.live for worker in workers):
        yield Item("bad", "No worker is alive", "what is queued waits: leasehold worker", "/workers")


def _errors(errors: Sequence[ErrorGroup], now: datetime) -> Iterator[Item]:
    recent = [group for group in errors if group.last_seen > now - HOUR and group.attempts >= 10]
    for group in sorted(recent, key=lambda one: -one.attempts)[:2]:
        title = f"{group.error_class or 'lease expired'} in {group.kind}"
        detail = f"{number(group.attempts)} attempts of {number(group.jobs)} jobs"
        yield Item("warn", title, detail, f"/jobs?{urlencode({'kind': group.kind, 'error': group.error_class or ''})}")


def _server(server: System) -> Iterator[Item]:
    held = [holder for holder in server.horizon if holder.seconds is not None and holder.seconds > 300]
    for holder in held[:1]:
        yield Item("warn", "Vacuum is held back", f"by {holder.words} for {span(holder.seconds)}", "/system")
    if server.standby:
        what = "it shows what it has received so far, and refuses changes"
        yield Item("warn", "This database is a standby", what, "/system")


def _some(kinds: Iterable[str]) -> str:
    """Return three of the kinds, and how many more there are."""
    shown = sorted(kinds)
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")
