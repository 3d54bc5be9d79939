"""What goes on and how to control it: /ops/queues, limits, canaries, workers, errors, rates, statistics, tokens, …"""

from functools import partial
from typing import Annotated
from uuid import UUID

from pydantic import ConfigDict, Field
from starlette.requests import Request

from leasehold.db.store import Canary
from leasehold.http.auth import token_of
from leasehold.http.body import header, header_key, read_model
from leasehold.http.front import Answer
from leasehold.http.ops import schemas
from leasehold.http.ops.serving import READS, PageQuery, as_json, listing, served, view
from leasehold.http.schemas import KEY_HEADER, Name, View
from leasehold.operate import canary, limits, queues, statistics, system, tokens, workers
from leasehold.operate.operator import Operator
from leasehold.operate.refusals import id_of
from leasehold.tokens import derived_token, make_token
from leasehold.version import __version__

listing(
    "QueueList", "queues", "The queues", queues.listed, schemas.QueueView, lambda row: row.queue,
    page="The queues that have to do with anything now.",
    about="Every queue that has something to run, runs something, is paused or limited, or is served by a live worker.",
)  # fmt: skip
listing(
    "RateList", "rates", "What becomes of each queue", queues.rates, schemas.RateView, lambda rate: rate.queue,
    page="The queues.", show=schemas.rate_view,
    about="What waits, what comes and goes a second over the last minute, and what becomes of it if that goes on.",
)  # fmt: skip


@served(
    "POST /queues/{queue:name}/pause", "Pause a queue", "not-found", result=schemas.Paused,
    body=schemas.PauseRequest, example={"reason": "the mail server is down"},
)  # fmt: skip
async def pause_queue(op: Operator, request: Request, queue: str) -> object:
    """Let no job of the queue be claimed; those that run go on, and what is enqueued waits."""
    op.caller.check_whole_queue(queue)
    wanted = await read_model(request, schemas.PauseRequest)
    await queues.pause(op, queue, wanted.reason)
    return {"queue": queue, "paused": True}


@served("POST /queues/{queue:name}/resume", "Resume a queue", "not-found", result=schemas.Paused)
async def resume_queue(op: Operator, queue: str) -> object:
    """Let the queue's jobs be claimed again. Resuming a queue that is not paused changes nothing."""
    await queues.resume(op, queue)
    return {"queue": queue, "paused": False}


listing(
    "LimitList", "limits", "The limits", limits.listed, schemas.LimitUse, lambda row: f"{row.scope} {row.name}",
    page="The limits.", about="Each with what runs under it now.",
)  # fmt: skip


@served(
    "PUT /limits/global", "Limit how many jobs run at all", "not-found", result=schemas.LimitView,
    body=schemas.LimitRequest, example={"maxRunning": 200},
)  # fmt: skip
async def set_global_limit(op: Operator, request: Request) -> object:
    """Set how many jobs may run at the same time. Those that run already go on."""
    return await set_limit(op, request, "global", "")


@served(
    "PUT /limits/{scope}/{name:name}", "Limit how many jobs of a queue, a kind or some exclusive keys run", "not-found",
    body=schemas.LimitRequest, example={"maxRunning": 5}, result=schemas.LimitView,
)  # fmt: skip
async def set_limit(op: Operator, request: Request, scope: str, name: str) -> object:
    """Set the limit. Jobs that run already go on. 0: nothing new starts."""
    limits.check_change(op.caller, scope, name)
    wanted = await read_model(request, schemas.LimitRequest)
    await limits.set_limit(op, scope, name, wanted.max_running)
    return {"scope": scope, "name": name, "max_running": wanted.max_running}


@served("DELETE /limits/global", "Take the global limit away", "not-found", status=204)
async def drop_global_limit(op: Operator) -> None:
    """Remove the limit. 404: there was none."""
    await limits.drop(op, "global", "")


@served("DELETE /limits/{scope}/{name:name}", "Take a limit away", "not-found", status=204)
async def drop_limit(op: Operator, scope: str, name: str) -> None:
    """Remove the limit. 404: there was none."""
    await limits.drop(op, scope, name)


listing(
    "CanaryList", "canaries", "The canary retries", canary.listed, schemas.CanaryView, lambda row: str(row.id),
    page="The canaries, the latest first.", about="The latest first.",
)  # fmt: skip


@served(
    "POST /canaries", "Retry a group of dead jobs with care", "not-found", status=202, result=schemas.CanaryView,
    body=schemas.CanaryRequest, example={"jobType": "SEND_EMAIL", "errorClass": "ConnectionError"},
)  # fmt: skip
async def start_canary(op: Operator, request: Request) -> Canary:
    """Retry ten jobs first. Where a canary runs for the group already, return that one. 404: nothing to retry."""
    wanted = await read_model(request, schemas.CanaryRequest)
    return await canary.start(op, wanted.job_type, wanted.error_class)


@served("POST /canaries/{canaryId}/stop", "Stop a canary retry", "not-found", result=schemas.CanaryView)
async def stop_canary(op: Operator, canary_id: UUID) -> Canary:
    """Retry no more jobs; those that were retried run. Stopping a canary that has ended changes nothing."""
    return await canary.stop(op, canary_id)


listing(
    "WorkerList", "workers", "The workers", partial(workers.listed, limit=1000), schemas.WorkerView, lambda row: row.id,
    page="The workers that were seen last.",
    about="The latest thousand, those seen last first, whether they live or not.",
)  # fmt: skip
listing(
    "ErrorList", "errors", "Recent failures, in groups", workers.errors, schemas.ErrorGroupView,
    lambda group: f"{group.kind} {group.error_class}", page="Recent failures in groups, the latest first.",
    about="The latest ten thousand recorded attempts, grouped by job type and class of error.",
)  # fmt: skip


class StatisticsQuery(View):
    """Which statistics."""

    model_config = ConfigDict(extra="ignore")

    seconds: int = Field(3600, ge=60, le=statistics.LONGEST, description="How far back.")
    step: Annotated[int, Field(ge=10, le=86400, multiple_of=10)] | None = Field(
        None, description="Made longer where there would be more than 1,000."
    )
    queue: Name | None = Field(None, description="Only of this queue.")
    job_type: Name | None = Field(None, description="Only of this type.")


@served(
    "GET /statistics", "What happened over time", "not-found", scopes=READS, query=StatisticsQuery,
    result=schemas.StatisticsView,
)  # fmt: skip
async def get_statistics(op: Operator, query: StatisticsQuery) -> object:
    """Return throughput, failures, waiting and running times as workers tally them, and samples of the flow.

    Steps of ten seconds reach back two hours, whole minutes two days, multiples of ten minutes two weeks.
    """
    asked = query.seconds, query.step, query.queue, query.job_type
    return schemas.statistics_view(await statistics.read(op, *asked))


@served("GET /stats", "A few figures", scopes=READS, result=schemas.Stats)
async def get_stats(op: Operator) -> object:
    """Return jobs by state, what ended in the last minute, live workers and slots. For tokens without restrictions."""
    found = await system.figures(op)
    return {"figures": {name: {"value": value, "capped": capped} for name, (value, capped) in found.items()}}


@served("GET /system", "The database server", scopes=READS, result=schemas.SystemView)
async def get_system(op: Operator) -> object:
    """Return dead rows, sizes, what keeps rows from removal, what a job costs. For tokens without restrictions."""
    return view(schemas.SystemView, await system.server(op), leasehold=__version__)


class TokenQuery(PageQuery):
    """Which page of the tokens."""

    cursor: Annotated[str, Field(max_length=100)] | None = Field(None, description="Of the page before.")
    limit: int = Field(100, ge=1, le=1000, description="At most so many tokens.")


@served("GET /tokens", "The tokens", "not-found", query=TokenQuery, result=schemas.TokenList)
async def list_tokens(op: Operator, query: TokenQuery) -> object:
    """Return all but their secrets, which are not known. The latest first; browsers' sessions are left out."""
    op.caller.check_unrestricted(tokens.WHAT)
    after = None if query.cursor is None else id_of(query.cursor, "page")
    found = await tokens.listed(op, query.limit, after)
    cursor = str(found[-1].id) if len(found) == query.limit else None
    return {"tokens": found, "cursor": cursor}


@served(
    "POST /tokens", "Make a token", "idempotency-conflict", status=201, result=schemas.TokenMade,
    parameters=[KEY_HEADER], body=schemas.TokenRequest,
    example={"name": "shop", "scopes": ["submit", "status"], "queues": ["mail"]},
)  # fmt: skip
async def create_token(op: Operator, request: Request) -> Answer:
    """Make a token. Only this answer shows it. It allows nothing that the caller's own does not, and ends
    with it.

    Rate and end are the caller's own where they are left out. With an Idempotency-Key it can be repeated, and returns
    the same token. Without one, and without an answer, find it in the list and revoke it.
    """
    op.caller.check_unrestricted(tokens.WHAT)
    wanted = await read_model(request, schemas.TokenRequest)
    key, maker = header_key(request), token_of(header(request.scope, b"authorization"))
    if key is not None and maker is not None:
        token = derived_token(maker, key)  # the one that the caller's key stands for
    else:
        token = make_token(UUID((await op.database.anew_ids(1))[0]))
    options = wanted.model_dump(exclude={"name"}) | {"scopes": sorted(set(wanted.scopes))}
    made = await tokens.create(op, token, wanted.name, **options)
    body = as_json(schemas.TokenMade, view(schemas.TokenMade, made, id=token.id, token=token.reveal()))
    return Answer(201, body, (b"cache-control", b"no-store"))


@served("DELETE /tokens/{tokenId}", "Revoke a token", "not-found", status=204)
async def revoke_token(op: Operator, request: Request, token_id: UUID) -> None:
    """Revoke the token and every token that it made; servers refuse them within seconds. Again changes nothing."""
    await tokens.revoke(op, token_id)
    (await request.app.state.leasehold.runtime()).gate.forget(token_id)
