"""/ops/system: the server itself."""

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import Field

from leasehold.db.pool import Database
from leasehold.db.store import Holder, TableRow
from leasehold.http.auth import Caller
from leasehold.http.ops.callers import Looker, check_unrestricted
from leasehold.http.runtime import runtime
from leasehold.http.schemas import Moment, View
from leasehold.version import __version__

router = APIRouter(tags=["ops"])

_NOT_PERMITTED = "not permitted"


class TableView(View):
    """One of our tables, as the server's statistics have it."""

    name: str
    live: int = Field(description="Rows.")
    dead: int = Field(description="Rows that vacuum has not removed yet.")
    bytes: int
    index_bytes: int
    vacuumed_at: Moment | None
    analyzed_at: Moment | None


class HolderView(View):
    """Somebody who keeps dead rows from being removed."""

    what: Literal["session", "standby", "slot", "prepared"]
    pid: int | None
    name: str | None = Field(description="The user, the slot, the prepared transaction.")
    application: str | None
    state: str | None
    xids: int | None = Field(description="How many transactions have begun since.")
    seconds: float | None = Field(description="For how long.")
    query: str | None = Field(None, description="What it ran last. Only with the scope operate.")
    words: str = Field(description="Who it is, for people.")


class SystemView(View):
    """The server and our tables on it."""

    leasehold: str = Field(description="The version of this API server.")
    version: str = Field(description="Of PostgreSQL.")
    sees_sessions: bool = Field(
        description="False: the schema's owner is not permitted to see other people's sessions (pg_read_all_stats),"
        " and `horizon` may be short of them."
    )
    tables: list[TableView]
    horizon: list[HolderView] = Field(description="Who holds the xmin horizon back, the oldest first.")
    connections: int
    max_connections: int
    deadlocks: int
    settings: dict[str, str]
    standby: bool = Field(description="It follows another server: it shows what it has received and takes no changes.")
    wal_bytes_per_job: float | None = Field(description="Of the whole server, over the last hour.")
    transactions_per_job: float | None = Field(description="Of this database, over the last hour.")
    jobs: int | None = Field(description="That finished in that time, as tallied.")
    jobs_seconds: float | None = Field(description="How long it was.")


@router.get("/system", operation_id="getSystem", summary="The database server", response_model=SystemView)
async def system(request: Request, caller: Looker) -> SystemView:
    """Dead rows, sizes, who keeps them from being removed, what a job costs. For tokens without restrictions."""
    parts = await runtime(request)
    return await system_for(parts.database, caller)


async def system_for(database: Database, caller: Caller) -> SystemView:
    """With what sessions run, if the caller may operate."""
    check_unrestricted(caller, "what concerns everything")
    found = await database.arun(database.store.system())
    horizon = found.horizon
    if "operate" in caller.scopes:
        horizon = await database.arun(database.store.holders())
    fields = {name: getattr(found, name) for name in SystemView.model_fields if hasattr(found, name)}
    return SystemView(
        **fields | {"tables": [_table(row) for row in found.tables], "horizon": [_holder(row) for row in horizon]},
        leasehold=__version__,
    )


def _table(row: TableRow) -> TableView:
    return TableView(**{name: getattr(row, name) for name in TableView.model_fields})


def _holder(row: Holder) -> HolderView:
    fields = {name: getattr(row, name) for name in HolderView.model_fields}
    if row.query == "<insufficient privilege>":
        fields["query"] = _NOT_PERMITTED
    return HolderView(**fields)
