"""The calls that look at the server itself."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from leasehold.db.call import Call
from leasehold.db.store.calls import Calls

_TEXTS = {
    "system": "select {}.system_v1()",
    "holders": "select what, pid, name, application, state, xids, seconds, query from {}.holders_v1(%s)",
}


@dataclass(frozen=True, slots=True)
class TableRow:
    """One of our tables, as the server's statistics have it."""

    name: str
    live: int
    dead: int
    bytes: int
    index_bytes: int
    vacuumed_at: datetime | None
    analyzed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Holder:
    """Somebody who keeps dead rows from being removed."""

    what: str
    """`session`, `standby`, `slot`, `prepared`."""
    pid: int | None
    name: str | None
    """The user, the slot, the prepared transaction."""
    application: str | None
    state: str | None
    xids: int | None
    """How many transactions have begun since."""
    seconds: float | None
    """For how long."""
    query: str | None = None
    """What it ran last: only from `holders`."""

    @property
    def words(self) -> str:
        """Who it is, for people."""
        named = {
            "session": "session",
            "standby": "standby",
            "slot": "replication slot",
            "prepared": "prepared transaction",
        }
        parts = [named.get(self.what, self.what)]
        if self.pid is not None and self.what in ("session", "standby"):
            parts.append(str(self.pid))
        parts += [part for part in (self.application, self.name) if part]
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class System:
    """The server and our tables on it."""

    version: str
    sees_sessions: bool
    """Whether the schema's owner may see what other people's sessions do; if not, `horizon` may be short of them."""
    tables: list[TableRow]
    horizon: list[Holder]
    """Who holds the xmin horizon back, the oldest first."""
    connections: int
    max_connections: int
    deadlocks: int
    """In this database, since its statistics were reset."""
    settings: dict[str, str]
    standby: bool
    """It follows another server: what it shows may be a moment old, and it takes no changes."""
    wal_bytes_per_job: float | None
    """Of the whole server, over the last hour; None: not known yet."""
    transactions_per_job: float | None
    """Of this database."""
    jobs: int | None
    """That finished in that time."""
    jobs_seconds: float | None
    """How long it was: an hour, or since the first sample."""


class SystemCalls(Calls):
    """Look at the server."""

    texts = _TEXTS

    def system(self) -> Call[System]:
        """Tables, who holds the horizon back, settings, what a job costs. Without anybody's query."""
        return Call(self._sql["system"], (), _system, repeatable=True)

    def holders(self, count: int = 10) -> Call[list[Holder]]:
        """Who holds the xmin horizon back, the oldest first, with what they run."""
        return Call(self._sql["holders"], (count,), lambda rows: [Holder(*row) for row in rows], repeatable=True)


def _system(rows: Any) -> System:
    found: dict[str, Any] = rows[0][0]
    cost = found["per_job"]
    return System(
        version=found["version"],
        sees_sessions=found["sees_sessions"],
        tables=[_table(row) for row in found["tables"]],
        horizon=[Holder(**row) for row in found["horizon"]],
        connections=found["connections"],
        max_connections=found["max_connections"],
        deadlocks=found["deadlocks"],
        settings=found["settings"],
        standby=found.get("standby", False),  # functions of the release before do not say it
        wal_bytes_per_job=cost["wal_bytes"],
        transactions_per_job=cost["transactions"],
        jobs=cost["jobs"],
        jobs_seconds=cost["seconds"],
    )


def _table(row: dict[str, Any]) -> TableRow:
    times = {name: row[name] and datetime.fromisoformat(row[name]) for name in ("vacuumed_at", "analyzed_at")}
    return TableRow(**row | times)
