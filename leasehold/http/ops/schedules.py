"""/ops/schedules: what runs again and again; make, change, switch on and off, run now."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, TypeVar
from uuid import UUID

from fastapi import APIRouter, Path, Request
from fastapi.responses import JSONResponse, Response
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from leasehold.cron import MAX_EVERY, Rule, zone
from leasehold.db.call import Call
from leasehold.db.store import StoredSchedule
from leasehold.errors import ConfigError, JobUnknown
from leasehold.http.body import KEY_HEADER, body_of, header_key, read_model
from leasehold.http.ops.bulk import BODY_PROBLEMS
from leasehold.http.ops.callers import Looker, Operator, check_unrestricted
from leasehold.http.ops.pages import CURSOR, Page, page_of
from leasehold.http.problems import Problem, responses
from leasehold.http.runtime import Runtime, runtime
from leasehold.http.schemas import Asked, Key, Moment, Name, Tag, View, When
from leasehold.intent import LARGEST, MAX_TAGS
from leasehold.retry import USUAL_ATTEMPTS
from leasehold.schedule import MAX_JITTER, MAX_MISSED, Missed, Overlap, Schedule

T = TypeVar("T")

router = APIRouter(tags=["ops"])

ScheduleKey = Annotated[
    Name, Path(description="The schedule's key.", openapi_examples={"a schedule": {"value": "nightly-report"}})
]
_WHAT: Final = "changing schedules"
_NEXT_RUNS: Final = 5
_NOT_POST: Final = ["GET", "PUT", "PATCH", "DELETE"]
_FIRST, _LAST = datetime(2, 1, 1, tzinfo=UTC), datetime(9998, 12, 31, tzinfo=UTC)


def _absent() -> Any:
    """The value of a field that may be left out and must not be null."""
    return None


def _readable(cron: str) -> str:
    try:
        Rule(cron=cron)
    except ConfigError as problem:
        raise ValueError(problem.args[0]) from None
    return cron


def _known(name: str) -> str:
    try:
        zone(name)
    except ConfigError as problem:
        raise ValueError(problem.args[0]) from None
    return name


def _whole(value: Any) -> Any:
    # To JSON Schema 5.0 is an integer.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _within(moment: datetime) -> datetime:
    # The very first and the very last days of the calendar cannot be shown in every time zone.
    return min(max(moment, _FIRST), _LAST)


Cron = Annotated[str, Field(max_length=500, json_schema_extra={"format": "cron"}), AfterValidator(_readable)]
Zone = Annotated[str, Field(max_length=200, json_schema_extra={"format": "time-zone"}), AfterValidator(_known)]
Day = Annotated[When, AfterValidator(_within)]


class ScheduleRequest(Asked):
    """A schedule. What is left out is as if its default were given."""

    model_config = ConfigDict(
        strict=True, json_schema_extra={"oneOf": [{"required": ["cron"]}, {"required": ["everySeconds"]}]}
    )

    job_type: Name = Field(description="Which task shall run.")
    cron: Cron = Field(
        default_factory=_absent, description="When: minute, hour, day, month, weekday. Or give everySeconds."
    )
    every_seconds: Annotated[float, Field(ge=1, le=MAX_EVERY.total_seconds())] = Field(
        default_factory=_absent, description="How often."
    )
    time_zone: Zone = Field("UTC", description="Whose clocks the cron expression is about.")
    payload: dict[str, Any] = Field(default_factory=dict, description="The arguments of its jobs: any JSON object.")
    queue: Name = Field(
        default_factory=_absent, description="Where its jobs wait. Left out: what its task declares, else `default`."
    )
    priority: Annotated[int, Field(ge=-LARGEST, le=LARGEST), BeforeValidator(_whole)] = Field(
        default_factory=_absent, description="Higher is more urgent. Left out: what its task declares, else 0."
    )
    max_attempts: Annotated[int, Field(ge=1, le=LARGEST), BeforeValidator(_whole)] = Field(
        default_factory=_absent,
        description=f"How many failures end a job. Left out: what its task declares, else {USUAL_ATTEMPTS}.",
    )
    exclusive_key: Key | None = Field(None, description="At most one job of this key runs at a time.")
    tags: list[Tag] | None = Field(None, max_length=MAX_TAGS, description="For people to find its jobs by.")
    due_argument: Name | None = Field(None, description="The field of the payload that gets the due time.")
    starts_at: Day | None = Field(None, description="No due time is before it.")
    ends_at: Day | None = Field(None, description="No due time is at it or after it.")
    jitter_seconds: Annotated[float, Field(ge=0, le=MAX_JITTER.total_seconds())] = Field(
        0, description="Begin each run up to so much after its due time."
    )
    missed: Missed = Field("skip", description="What becomes of due times at which nobody was there.")
    grace_seconds: Annotated[float, Field(ge=0, le=MAX_EVERY.total_seconds())] = Field(
        300, description="With skip: how late a run may be and is not missed yet."
    )
    max_missed: Annotated[int, Field(ge=1, le=MAX_MISSED), BeforeValidator(_whole)] = Field(
        1000, description="With all: how many are made up for at most."
    )
    overlap: Overlap = Field("allow", description="What to do while a job of it is unfinished.")
    enabled: bool | None = Field(None, description="Left out: as it is; a new one is enabled.")

    @model_validator(mode="after")
    def _fits(self) -> "ScheduleRequest":
        if ("cron" in self.model_fields_set) == ("every_seconds" in self.model_fields_set):
            raise ValueError("give either cron or everySeconds")
        if self.starts_at is not None and self.ends_at is not None and self.starts_at >= self.ends_at:
            raise ValueError("endsAt is not after startsAt")
        return self

    def schedule(self, key: str) -> Schedule:
        """As Python has it."""
        every = self.every_seconds if "every_seconds" in self.model_fields_set else None
        return Schedule(
            key=key, kind=self.job_type, cron=self.cron, every=None if every is None else timedelta(seconds=every),
            time_zone=self.time_zone, payload=json.dumps(self.payload), queue=self.queue, priority=self.priority,
            max_attempts=self.max_attempts, exclusive_key=self.exclusive_key, tags=tuple(self.tags or ()),
            due_argument=self.due_argument, starts_at=self.starts_at, ends_at=self.ends_at,
            jitter=timedelta(seconds=self.jitter_seconds), missed=self.missed,
            grace=timedelta(seconds=self.grace_seconds), max_missed=self.max_missed, overlap=self.overlap,
            enabled=self.enabled,
        )  # fmt: skip


class EnableRequest(Asked):
    """How to switch a schedule on."""

    model_config = ConfigDict(strict=True)

    from_now: bool = Field(False, description="Forget what came due meanwhile, instead of missing it.")


class ScheduleView(View):
    """A schedule as it stands."""

    key: str
    job_type: str
    cron: str | None
    every_seconds: float | None
    time_zone: str
    queue: str
    priority: int
    max_attempts: int
    due_argument: str | None
    starts_at: Moment | None
    ends_at: Moment | None
    jitter_seconds: float
    missed: Missed
    grace_seconds: float
    max_missed: int
    overlap: Overlap
    enabled: bool
    is_declared: bool = Field(description="Code has declared it.")
    over: bool = Field(description="There is no next run any more.")
    next_runs: list[Moment] = Field(description="The next five due times, as far as they are known.")
    last_run_at: Moment | None = Field(description="The latest due time that was fired.")
    last_job: UUID | None
    fired: int = Field(description="Jobs enqueued at due times.")
    missed_runs: int = Field(description="Due times passed over because nobody was there.")
    overlapped: int = Field(description="Due times passed over because a job was unfinished.")
    problem: str | None = Field(description="Why it cannot be fired.")
    created_at: Moment
    updated_at: Moment
    payload: Any = Field(None, description="Only with the scope operate.")
    exclusive_key: str | None = Field(None, description="Only with the scope operate.")
    tags: list[str] | None = Field(None, description="Only with the scope operate.")


class ScheduleList(View):
    """The schedules, by key."""

    schedules: list[ScheduleView]
    cursor: str | None = Field(description=CURSOR)


class ScheduleRun(View):
    """A job that was enqueued at somebody's word."""

    key: str
    job_id: UUID


@router.get(
    "/schedules",
    operation_id="listSchedules",
    summary="The schedules",
    response_model=ScheduleList,
    responses=responses("not-found", "invalid-request"),
)
async def list_schedules(request: Request, caller: Looker, page: Page) -> ScheduleList:
    """Each with its next runs. What their jobs carry only with the scope operate."""
    parts = await runtime(request)
    found = await parts.database.arun(parts.database.store.schedule_list())
    mine = [row for row in found if caller.may(queue=row.queue, kind=row.kind)]
    whole = "operate" in caller.scopes
    shown, cursor = page_of(mine, page, lambda row: row.key)
    # Reckoning with calendars takes its time.
    views = await asyncio.to_thread(lambda: [_view(row, whole=whole) for row in shown])
    return ScheduleList(schedules=views, cursor=cursor)


@router.post(
    "/schedules/{key:name}/enable",
    operation_id="enableSchedule",
    summary="Switch a schedule on",
    response_model=ScheduleView,
    responses=responses("not-found", *BODY_PROBLEMS),
    openapi_extra=body_of(EnableRequest, {"fromNow": True}),
)
async def enable_schedule(request: Request, caller: Operator, key: ScheduleKey) -> ScheduleView:
    """What came due meanwhile counts as missed, unless it shall count from now on."""
    check_unrestricted(caller, _WHAT)
    parts = await runtime(request)
    wanted = await read_model(request, EnableRequest)
    return await _changed(parts, key, parts.database.store.schedule_enable(key, from_now=wanted.from_now))


@router.post(
    "/schedules/{key:name}/disable",
    operation_id="disableSchedule",
    summary="Switch a schedule off",
    response_model=ScheduleView,
    responses=responses("not-found", "invalid-request"),
)
async def disable_schedule(request: Request, caller: Operator, key: ScheduleKey) -> ScheduleView:
    """No more jobs, until somebody switches it on: a new release of the code does not."""
    check_unrestricted(caller, _WHAT)
    parts = await runtime(request)
    return await _changed(parts, key, parts.database.store.schedule_disable(key))


@router.post(
    "/schedules/{key:name}/run",
    operation_id="runSchedule",
    summary="Run a schedule now",
    status_code=202,
    response_model=ScheduleRun,
    responses=responses("not-found", "key-conflict", "invalid-request"),
    openapi_extra={"parameters": [KEY_HEADER]},
)
async def run_schedule(request: Request, caller: Operator, key: ScheduleKey) -> Response:
    """One job, now; the next run stays where it is. Repeated with one Idempotency-Key, it gives the same job."""
    check_unrestricted(caller, _WHAT)
    parts = await runtime(request)
    [new] = await parts.database.anew_ids(1)
    job_id = await _known_or_404(parts, parts.database.store.schedule_run_now(key, new, header_key(request)))
    location = f"{request.scope.get('root_path', '')}/jobs/{job_id}"
    return JSONResponse({"key": key, "jobId": str(job_id)}, status_code=202, headers={"location": location})


@router.api_route("/schedules/{key:name}/enable", methods=_NOT_POST, include_in_schema=False)
@router.api_route("/schedules/{key:name}/disable", methods=_NOT_POST, include_in_schema=False)
@router.api_route("/schedules/{key:name}/run", methods=_NOT_POST, include_in_schema=False)
async def not_a_schedule() -> None:
    """Else the routes below would look for a schedule of that key."""
    raise Problem("method-not-allowed", "another method is needed", headers={"allow": "POST"})


@router.get(
    "/schedules/{key:name}",
    operation_id="getSchedule",
    summary="One schedule",
    response_model=ScheduleView,
    responses=responses("not-found", "invalid-request"),
)
async def get_schedule(request: Request, caller: Looker, key: ScheduleKey) -> ScheduleView:
    """What its jobs carry only with the scope operate."""
    row = await _row(await runtime(request), key)
    if not caller.may(queue=row.queue, kind=row.kind):
        raise Problem("not-found", "no such schedule")
    return await asyncio.to_thread(_view, row, whole="operate" in caller.scopes)


@router.put(
    "/schedules/{key:name}",
    operation_id="putSchedule",
    summary="Make or change a schedule",
    response_model=ScheduleView,
    responses=responses(*BODY_PROBLEMS),
    openapi_extra=body_of(
        ScheduleRequest, {"jobType": "REPORT", "cron": "0 6 * * 1-5", "timeZone": "Europe/Berlin", "missed": "once"}
    ),
)
async def put_schedule(request: Request, caller: Operator, key: ScheduleKey) -> ScheduleView:
    """It is as the body says, whatever it was. A new rule counts from now on; any other change leaves the next run."""
    check_unrestricted(caller, _WHAT)
    parts = await runtime(request)
    wanted = await read_model(request, ScheduleRequest)
    await parts.database.arun(parts.database.store.schedule_put(wanted.schedule(key)))
    return await asyncio.to_thread(_view, await _row(parts, key), whole=True)


@router.delete(
    "/schedules/{key:name}",
    operation_id="removeSchedule",
    summary="Take a schedule away",
    status_code=204,
    response_class=Response,
    responses=responses("not-found", "invalid-request"),
)
async def remove_schedule(request: Request, caller: Operator, key: ScheduleKey) -> Response:
    """Its jobs stay. Code that declares it makes it anew when a worker starts. 404: there was none."""
    check_unrestricted(caller, _WHAT)
    parts = await runtime(request)
    if not await parts.database.arun(parts.database.store.schedule_remove(key)):
        raise Problem("not-found", "no such schedule")
    return Response(status_code=204)


async def _known_or_404(parts: Runtime, call: Call[T]) -> T:
    try:
        return await parts.database.arun(call)
    except JobUnknown:
        raise Problem("not-found", "no such schedule") from None


async def _changed(parts: Runtime, key: str, call: Any) -> ScheduleView:
    await _known_or_404(parts, call)
    return await asyncio.to_thread(_view, await _row(parts, key), whole=True)


async def _row(parts: Runtime, key: str) -> StoredSchedule:
    for row in await parts.database.arun(parts.database.store.schedule_list(key)):
        return row
    raise Problem("not-found", "no such schedule")


_SECONDS: Final[dict[str, Literal["every", "jitter", "grace"]]] = {
    "every_seconds": "every", "jitter_seconds": "jitter", "grace_seconds": "grace",
}  # fmt: skip
_WITHHELD: Final = ("payload", "exclusive_key", "tags")


def _view(row: StoredSchedule, *, whole: bool) -> ScheduleView:
    plain = set(ScheduleView.model_fields) - {"job_type", "next_runs", *_SECONDS, *_WITHHELD}
    fields: dict[str, Any] = {name: getattr(row, name) for name in plain}
    for name, length in _SECONDS.items():
        value = getattr(row, length)
        fields[name] = None if value is None else value.total_seconds()
    if whole:
        fields |= {"payload": json.loads(row.payload), "exclusive_key": row.exclusive_key, "tags": row.tags}
    return ScheduleView(job_type=row.kind, next_runs=_next_runs(row), **fields)


def _next_runs(row: StoredSchedule) -> list[datetime]:
    try:
        return row.upcoming(_NEXT_RUNS)
    except ConfigError:  # SQL took a rule that makes no sense; `problem` tells
        return []
