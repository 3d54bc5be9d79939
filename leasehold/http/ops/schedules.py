"""/ops/schedules: what runs again and again; make, change, switch on and off, run now."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from starlette.requests import Request

from leasehold.cron import MAX_EVERY, Rule, zone
from leasehold.db.store import StoredSchedule
from leasehold.errors import ConfigError
from leasehold.http.body import header_key, read_model
from leasehold.http.front import Answer
from leasehold.http.ops.serving import CURSOR, READS, WITHHELD, PageQuery, as_json, served, shown, view
from leasehold.http.schemas import KEY_HEADER, WHOLE, Asked, Moment, Name, RequestedFields, View, When
from leasehold.operate import schedules
from leasehold.operate.operator import Operator
from leasehold.operate.refusals import page_of
from leasehold.schedule import MAX_JITTER, MAX_MISSED, Missed, Overlap, Schedule

_FIRST, _LAST = datetime(2, 1, 1, tzinfo=UTC), datetime(9998, 12, 31, tzinfo=UTC)
_SECONDS = {"every": "every_seconds", "jitter": "jitter_seconds", "grace": "grace_seconds"}
"""Lengths of time: our names, and those of the API."""


def _absent() -> Any:
    """The value of a field that may be left out and must not be null."""
    return None


def _checked(check: Callable[[str], object]) -> AfterValidator:
    def checked(text: str) -> str:
        try:
            check(text)
        except ConfigError as problem:
            raise ValueError(problem.args[0]) from None
        return text

    return AfterValidator(checked)


Cron = Annotated[
    str, Field(max_length=500, json_schema_extra={"format": "cron"}), _checked(lambda text: Rule(cron=text))
]
Zone = Annotated[str, Field(max_length=200, json_schema_extra={"format": "time-zone"}), _checked(zone)]
# The very first and the very last days of the calendar cannot be shown in every time zone.
Day = Annotated[When, AfterValidator(lambda moment: min(max(moment, _FIRST), _LAST))]


class ScheduleRequest(RequestedFields):
    """A schedule. What is left out is as if its default were given."""

    model_config = ConfigDict(
        strict=True, json_schema_extra={"oneOf": [{"required": ["cron"]}, {"required": ["everySeconds"]}]}
    )

    cron: Cron = Field(
        default_factory=_absent, description="When: minute, hour, day, month, weekday. Or set everySeconds."
    )
    every_seconds: Annotated[float, Field(ge=1, le=MAX_EVERY.total_seconds())] = Field(
        default_factory=_absent, description="How often."
    )
    time_zone: Zone = Field("UTC", description="Whose clocks the cron expression is about.")
    due_argument: Name | None = Field(None, description="The field of the payload that gets the due time.")
    starts_at: Day | None = Field(None, description="No due time is before it.")
    ends_at: Day | None = Field(None, description="No due time is at it or after it.")
    jitter_seconds: Annotated[float, Field(ge=0, le=MAX_JITTER.total_seconds())] = Field(
        0, description="Begin each run up to so much after its due time."
    )
    missed: Missed = Field("skip", description="What becomes of due times at which no worker was there.")
    grace_seconds: Annotated[float, Field(ge=0, le=MAX_EVERY.total_seconds())] = Field(
        300, description="With skip: how late a run may be and is not missed yet."
    )
    max_missed: Annotated[int, Field(ge=1, le=MAX_MISSED), WHOLE] = Field(
        1000, description="With all: how many are made up for at most."
    )
    overlap: Overlap = Field("allow", description="What to do while a job of it is unfinished.")
    enabled: bool | None = Field(None, description="Left out: as it is; a new one is enabled.")

    @model_validator(mode="after")
    def _fits(self) -> "ScheduleRequest":
        if ("cron" in self.model_fields_set) == ("every_seconds" in self.model_fields_set):
            raise ValueError("set either cron or everySeconds")
        if self.starts_at is not None and self.ends_at is not None and self.starts_at >= self.ends_at:
            raise ValueError("endsAt is not after startsAt")
        return self

    def schedule(self, key: str) -> Schedule:
        """Return it as Python has it."""
        given: dict[str, Any] = {name: value for name, value in self if value is not None}
        given |= {"kind": given.pop("job_type"), "payload": json.dumps(self.payload), "tags": tuple(self.tags or ())}
        for name, field in _SECONDS.items():
            if field in given:
                given[name] = timedelta(seconds=given.pop(field))
        return Schedule(key=key, **given)


class EnableRequest(Asked):
    """How to switch a schedule on."""

    model_config = ConfigDict(strict=True)

    from_now: bool = Field(False, description="Forget what came due meanwhile, instead of missing it.")


ScheduleView = shown(
    "ScheduleView", "A schedule as it stands.", StoredSchedule, "due_after", "locked_by", "locked_until", "next_run_at",
    renamed=_SECONDS, missed=Missed, overlap=Overlap, metadata=WITHHELD,
    payload=(Any, Field(None, description=WITHHELD)),
    next_runs=(list[Moment], "The next five due times, as far as they are known."),
)  # fmt: skip
ScheduleList = shown("ScheduleList", "The schedules, by key.", cursor=CURSOR, schedules=[ScheduleView])
ScheduleRun = shown("ScheduleRun", "A job that was enqueued now.", key=str, job_id=UUID)


@served("GET /schedules", "The schedules", "not-found", scopes=READS, query=PageQuery, result=ScheduleList)
async def list_schedules(op: Operator, query: PageQuery) -> object:
    """Return each with its next runs; payload and metadata only with the scope operate."""
    found, cursor = page_of(await schedules.listed(op), lambda row: row.key, query.cursor, query.limit)
    # In a thread: the next runs of cron expressions are computed.
    views = await asyncio.to_thread(lambda: [_view(row) for row in found])
    return {"schedules": views, "cursor": cursor}


@served(
    "POST /schedules/{key:name}/enable", "Switch a schedule on", "not-found", result=ScheduleView,
    body=EnableRequest, example={"fromNow": True},
)  # fmt: skip
async def enable_schedule(op: Operator, request: Request, key: str) -> object:
    """Switch the schedule on. What came due meanwhile counts as missed, unless it shall count from now on."""
    op.caller.check_unrestricted(schedules.WHAT)
    wanted = await read_model(request, EnableRequest)
    await schedules.enable(op, key, from_now=wanted.from_now)
    return await get_schedule(op, key)


@served("POST /schedules/{key:name}/disable", "Switch a schedule off", "not-found", result=ScheduleView)
async def disable_schedule(op: Operator, key: str) -> object:
    """Enqueue no more jobs until an operator switches it on: a new release of the code does not."""
    await schedules.disable(op, key)
    return await get_schedule(op, key)


@served(
    "POST /schedules/{key:name}/run", "Run a schedule now", "not-found", "key-conflict",
    status=202, result=ScheduleRun, parameters=[KEY_HEADER],
)  # fmt: skip
async def run_schedule(op: Operator, request: Request, key: str) -> Answer:
    """Enqueue one job now; the next run stays. Repeated with one Idempotency-Key, it returns the same job."""
    op.caller.check_unrestricted(schedules.WHAT)
    [new] = await op.database.anew_ids(1)
    job_id = await schedules.run_now(op, key, new, header_key(request))
    location = f"{request.scope.get('root_path', '')}/jobs/{job_id}"
    return Answer(202, as_json(ScheduleRun, {"key": key, "job_id": job_id}), (b"location", location.encode()))


@served("GET /schedules/{key:name}", "One schedule", "not-found", scopes=READS, result=ScheduleView)
async def get_schedule(op: Operator, key: str) -> object:
    """Return the schedule; payload and metadata only with the scope operate."""
    return await asyncio.to_thread(_view, await schedules.one(op, key))


@served(
    "PUT /schedules/{key:name}", "Make or change a schedule", result=ScheduleView, body=ScheduleRequest,
    example={"jobType": "REPORT", "cron": "0 6 * * 1-5", "timeZone": "Europe/Berlin", "missed": "once"},
)  # fmt: skip
async def put_schedule(op: Operator, request: Request, key: str) -> object:
    """Make the schedule as the body says. A new rule counts from now on; any other change leaves the next run."""
    op.caller.check_unrestricted(schedules.WHAT)
    wanted = await read_model(request, ScheduleRequest)
    return await asyncio.to_thread(_view, await schedules.put(op, wanted.schedule(key)))


@served("DELETE /schedules/{key:name}", "Take a schedule away", "not-found", status=204)
async def remove_schedule(op: Operator, key: str) -> None:
    """Remove the schedule; its jobs stay. Code that declares it makes it anew when a worker starts. 404: none."""
    await schedules.remove(op, key)


def _view(row: StoredSchedule) -> View:
    return view(ScheduleView, row, payload=json.loads(row.payload or "null"), next_runs=schedules.next_runs(row))
