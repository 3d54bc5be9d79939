"""The calls about the whole: the server, what is wrong, the laws that must hold, figures, pruning."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

from leasehold.db.call import Call, Row
from leasehold.db.store.calls import Calls, column, from_json


@dataclass(frozen=True, slots=True)
class TableRow:
    """One of our tables, as the server's statistics have it."""

    name: str
    live: Annotated[int, "Rows."]
    dead: Annotated[int, "Rows that vacuum has not removed yet."]
    bytes: int
    index_bytes: int
    vacuumed_at: datetime | None
    analyzed_at: datetime | None


@dataclass(frozen=True, slots=True)
class HorizonHolder:
    """What keeps dead rows from being removed."""

    what: Annotated[str, "`session`, `standby`, `slot`, `prepared`."]
    pid: int | None
    name: Annotated[str | None, "The user, the slot, the prepared transaction."]
    application: str | None
    state: str | None
    xids: Annotated[int | None, "How many transactions have begun since."]
    seconds: Annotated[float | None, "For how long."]
    query: Annotated[str | None, "What it ran last: only from `holders`."] = None

    @property
    def words(self) -> str:
        """Which one it is, in words."""
        parts = [{"slot": "replication slot", "prepared": "prepared transaction"}.get(self.what, self.what)]
        if self.pid is not None and self.what in ("session", "standby"):
            parts.append(str(self.pid))
        parts += [part for part in (self.application, self.name) if part]
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class System:
    """The server and our tables on it."""

    version: Annotated[str, "Of PostgreSQL."]
    sees_sessions: Annotated[
        bool, "Whether the schema's owner may see other sessions (pg_read_all_stats); if not, `horizon` may lack some."
    ]
    tables: list[TableRow]
    horizon: Annotated[list[HorizonHolder], "What holds the xmin horizon back, the oldest first."]
    connections: int
    max_connections: int
    deadlocks: Annotated[int, "In this database, since its statistics were reset."]
    settings: dict[str, str]
    standby: Annotated[bool, "It follows another server: what it shows may be a moment old, and it takes no changes."]
    wal_bytes_per_job: Annotated[float | None, "Of the whole server, over the last hour; None: not known yet."]
    transactions_per_job: Annotated[float | None, "Of this database."]
    jobs: Annotated[int | None, "That finished in that time."]
    jobs_seconds: Annotated[float | None, "How long it was: an hour, or since the first sample."]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked."""

    name: str
    verdict: str  # `ok`, `warn` or `fail`
    detail: str  # what was found, in words
    cure: str  # what to do about it, if it is not ok


@dataclass(frozen=True, slots=True)
class Names:
    """The names of known queues and kinds."""

    queues: list[str]
    kinds: list[str]


@dataclass(frozen=True, slots=True)
class Law:
    """Something that must hold, and whether it does."""

    name: str  # `lost_jobs`, `double_owners`, `broken_limits`, …
    ok: bool
    violations: int
    capped: bool  # there are more than were counted
    sample: list[str]  # the first ten: ids of jobs, names of limits, keys of schedules
    detail: str  # what a violation means, in words
    checked_at: datetime


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many jobs of one kind and state were removed, or would be."""

    kind: str
    state: str
    jobs: int
    capped: bool  # there may be more: call again


class SystemCalls(Calls):
    """Read the state of the whole, and remove what is old."""

    def system(self) -> Call[System]:
        """Tables, what holds the horizon back (without queries), settings, what a job costs."""
        return self._ask("system_v1", read=_system)

    def holders(self, count: int = 10) -> Call[list[HorizonHolder]]:
        """What holds the xmin horizon back, the oldest first, with the queries."""
        return self._list(HorizonHolder, "holders_v1", count)

    def doctor(self) -> Call[list[Finding]]:
        """What can be found out from within the database."""
        return self._list(Finding, "doctor_v1")

    def names(self, count: int = 1000) -> Call[Names]:
        """The queues and kinds that are known, at most so many of each."""
        read = lambda rows: Names(*([name for what, name in rows if what == one] for one in ("queue", "kind")))  # noqa: E731
        return self._ask("names_v1", count, columns="what, name", read=read)

    def verify(
        self, cap: int = 1000, *, slack: timedelta = timedelta(minutes=1), latest: int = 1000
    ) -> Call[list[Law]]:
        """Whether everything holds that must: one row a law, each of bounded cost."""
        return self._list(Law, "verify_v1", cap, slack, latest)

    def counts(self, cap: int = 10_000) -> Call[dict[str, tuple[int, bool]]]:
        """Jobs by state, counted up to `cap`; True: there are more."""
        return self._ask("counts_v1", cap, columns="state, jobs, capped", read=_counts)

    def stats(self, cap: int = 10_000) -> Call[dict[str, tuple[int, bool]]]:
        """A few figures, counted up to `cap`; True: there are more."""
        return self._ask("stats_v1", cap, columns="name, value, capped", read=_counts)

    def prune(
        self, older_than: timedelta, states: Sequence[str] = ("success",), count: int = 1000, *, dry_run: bool = False
    ) -> Call[list[Pruned]]:
        """Remove up to `count` jobs that finished longer ago than that, with all that is recorded of them."""
        return self._list(Pruned, "prune_v1", older_than, list(states), count, dry_run, repeatable=dry_run)

    def prune_workers(
        self, older_than: timedelta = timedelta(days=7), count: int = 1000, *, dry_run: bool = False
    ) -> Call[list[str]]:
        """Delete workers that stopped long ago; returns their names."""
        args = (older_than, count, dry_run)
        return self._ask("prune_workers_v1", *args, columns="*", read=column, repeatable=dry_run)


def _system(rows: Sequence[Row]) -> System:
    found: dict[str, Any] = rows[0][0]
    cost = found.pop("per_job")
    found["tables"] = [from_json(TableRow, row, "vacuumed_at", "analyzed_at") for row in found["tables"]]
    found["horizon"] = [HorizonHolder(**row) for row in found["horizon"]]
    return System(
        **found, wal_bytes_per_job=cost["wal_bytes"], transactions_per_job=cost["transactions"], jobs=cost["jobs"],
        jobs_seconds=cost["seconds"],
    )  # fmt: skip


def _counts(rows: Sequence[Row]) -> dict[str, tuple[int, bool]]:
    return {name: (int(value), capped) for name, value, capped in rows}
