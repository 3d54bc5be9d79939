"""The client's decisions, without a network: when it sends again, for how long, and what it raises in the end."""

import json
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from leasehold._aio import run_blocking
from leasehold.client import AsyncClient, Client, NewJob
from leasehold.client.events import Parser, events
from leasehold.client.exchange import HttpSession, backoff
from leasehold.client.problems import NoAnswer, Reply, Request, Response
from leasehold.errors import (
    ApiError,
    ApiUnavailable,
    ConfigError,
    DatabaseUnavailable,
    IdempotencyConflict,
    IllegalTransition,
    InvalidJob,
    JobCancelled,
    JobFailed,
    JobUnknown,
    NotPermitted,
    ResultTimeout,
    SchemaMismatch,
)

JOB = "018f0000-0000-7000-8000-000000000001"
VIEW = {
    "jobId": JOB,
    "jobType": "SEND_EMAIL",
    "status": "PENDING",
    "queue": "default",
    "runAt": "2026-01-01T00:00:00Z",
    "createdAt": "2026-01-01T00:00:00Z",
    "updatedAt": "2026-01-01T00:00:00Z",
}
DONE = VIEW | {"status": "COMPLETED", "finishedAt": "2026-01-01T00:00:01Z"}
LOST = NoAnswer(error=ConnectionError("cut"), sent=True)
UNSENT = NoAnswer(error=ConnectionError("refused"), sent=False)


def answer(status: int = 202, data: object = VIEW, **headers: str) -> Response:
    return Response(
        status=status, headers={"content-type": "application/json", **headers}, content=json.dumps(data).encode()
    )


def problem(status: int, name: str, retry_after: str | None = None, **more: object) -> Response:
    headers = {} if retry_after is None else {"retry-after": retry_after}
    return answer(status, {"type": f"/problems/{name}", "title": name.title(), "status": status, **more}, **headers)


@dataclass
class Sent:
    request: Request
    timeout: float


@dataclass
class World:
    """In place of a wire: a clock that only waiting moves, and a server that follows a script."""

    script: list[Any]
    now: float = 0.0
    sent: list[Sent] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)

    @property
    def session(self) -> HttpSession:
        wire: Any = self
        return HttpSession(wire=wire, timeout=30.0, try_timeout=10.0, clock=lambda: self.now, chance=lambda: 1.0)

    @property
    def client(self) -> AsyncClient:
        client = AsyncClient("http://127.0.0.1:1")
        client._session = self.session
        return client

    async def send(self, request: Request, seconds: float) -> Reply:
        self.sent.append(Sent(request, seconds))
        reply = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        self.now += 0.01 if isinstance(reply, Response) else seconds
        return reply

    async def lines(self, request: Request, seconds: float) -> AsyncIterator[Reply | str]:
        self.sent.append(Sent(request, seconds))
        following = self.script.pop(0)
        if isinstance(following, (Response, NoAnswer)):
            yield following
            return
        yield Response(status=200, headers={})
        for line in following:
            yield line

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def run(self, operation: Coroutine[Any, Any, Any]) -> Any:
        return run_blocking(operation)


def submit(world: World, **more: Any) -> Any:
    return world.run(world.client.submit("SEND_EMAIL", {"to": "a@b.c"}, **more))


def keys(world: World) -> set[str]:
    return {json.loads(step.request.body or b"")["idempotencyKey"] for step in world.sent}


@pytest.mark.parametrize("first", [LOST, UNSENT, problem(503, "database-unavailable", "1"), answer(502), answer(504)])
def test_a_submission_is_repeated_with_one_key(first: Reply) -> None:
    world = World([first, first, answer()])
    assert submit(world).job_id == JOB
    assert len(world.sent) == 3
    assert len(keys(world)) == 1
    assert len({step.request.body for step in world.sent}) == 1


def test_two_submissions_have_two_keys() -> None:
    world = World([answer()])
    submit(world), submit(world)
    assert len(keys(world)) == 2


def test_a_key_that_was_given_is_kept() -> None:
    world = World([LOST, answer()])
    submit(world, idempotency_key="req_1")
    assert keys(world) == {"req_1"}


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 500, 501])
def test_what_says_no_is_not_asked_again(status: int) -> None:
    world = World([problem(status, "whatever")])
    with pytest.raises(ApiError) as caught:
        submit(world)
    assert len(world.sent) == 1
    assert (caught.value.status, caught.value.type, caught.value.title) == (status, "/problems/whatever", "Whatever")


def test_retry_after_is_obeyed_and_jitter_comes_on_top() -> None:
    world = World([problem(429, "rate-limited", "3"), problem(503, "database-unavailable", "2"), answer()])
    submit(world)
    assert world.pauses == [3 + backoff(1, 1.0), 2 + backoff(2, 1.0)]


def test_retry_after_may_be_a_date() -> None:
    moment = datetime.now(UTC) + timedelta(seconds=20)
    world = World([problem(429, "rate-limited", format_datetime(moment, usegmt=True)), answer()])
    submit(world)
    assert 10 < world.pauses[0] < 21


@pytest.mark.parametrize("odd", ["", "soon", "-5", "1e9", "99999999999999999999", "²"])
def test_an_odd_retry_after_does_no_harm(odd: str) -> None:
    world = World([problem(429, "rate-limited", odd), answer()])
    try:
        submit(world)
    except ApiError:
        assert odd.startswith("999")  # it asked for longer than there is time


def test_the_time_is_over_once_for_all_repetitions() -> None:
    world = World([LOST])
    with pytest.raises(ApiUnavailable) as caught:
        submit(world, idempotency_key="req_1")
    assert 15 < world.now <= 30.1
    assert caught.value.keys == ("req_1",)
    assert "same idempotency key" in str(caught.value)
    assert all(step.timeout <= 10 for step in world.sent)


def test_waiting_longer_than_there_is_time_is_not_begun() -> None:
    world = World([problem(503, "database-unavailable", "60")])
    with pytest.raises(DatabaseUnavailable):
        submit(world)
    assert world.pauses == []


def test_pauses_grow_up_to_a_bound_and_are_jittered() -> None:
    bounds = [backoff(n, 1.0) for n in range(1, 40)]
    assert bounds == sorted(bounds)
    assert bounds[-1] == 5.0
    assert backoff(5, 0.0) == 0.0


def test_a_retry_by_a_person_is_not_repeated_when_its_answer_is_lost() -> None:
    world = World([LOST])
    with pytest.raises(ApiUnavailable, match="check before you repeat"):
        world.run(world.client.retry(JOB))
    assert len(world.sent) == 1


@pytest.mark.parametrize("first", [UNSENT, problem(429, "rate-limited", "1")])
def test_a_retry_by_a_person_is_repeated_when_nothing_can_have_been_done(first: Reply) -> None:
    world = World([first, answer(200, {"ok": True})])
    world.run(world.client.retry(JOB))
    assert len(world.sent) == 2


@pytest.mark.parametrize(
    ("status", "name", "more", "error"),
    [
        (404, "not-found", {}, JobUnknown),
        (409, "already-finished", {}, IllegalTransition),
        (401, "unauthorized", {}, NotPermitted),
        (403, "forbidden", {}, NotPermitted),
        (409, "job-failed", {"reason": "exhausted"}, JobFailed),
        (409, "job-failed", {"reason": "cancelled"}, JobCancelled),
    ],
)
def test_a_problem_is_the_exception_that_it_would_be_without_http(
    status: int, name: str, more: dict[str, object], error: type[Exception]
) -> None:
    world = World([problem(status, name, **more)])
    with pytest.raises(error) as caught:
        world.run(world.client.result(JOB))
    assert type(caught.value) is error
    assert isinstance(caught.value.__cause__, ApiError)
    assert caught.value.__cause__.status == status


@pytest.mark.parametrize(
    ("status", "name", "error"),
    [
        (422, "invalid-request", InvalidJob),
        (400, "malformed-json", InvalidJob),
        (413, "body-too-large", InvalidJob),
        (409, "idempotency-conflict", IdempotencyConflict),
        (503, "schema-mismatch", SchemaMismatch),
        (503, "outcome-unknown", DatabaseUnavailable),
        (418, "teapot", ApiError),
    ],
)
def test_a_problem_of_a_submission_raises_its_own_error(status: int, name: str, error: type[Exception]) -> None:
    world = World([problem(status, name, errors=[{"field": "payload.to", "message": "is missing"}])])
    with pytest.raises(error, match=r"payload\.to: is missing") as caught:
        submit(world)
    assert type(caught.value) is error


def test_waiting_polls_until_the_job_has_finished() -> None:
    world = World([answer(200), LOST, answer(200), answer(200, DONE)])
    assert world.run(world.client.wait(JOB)).status == "COMPLETED"
    assert {step.request.query for step in world.sent} == {(("wait", "20"),)}
    assert all(step.timeout <= 30 for step in world.sent)


def test_waiting_ends_at_its_own_deadline() -> None:
    world = World([answer(200)])
    with pytest.raises(ResultTimeout, match=r"after 5 s"):
        world.run(world.client.wait(JOB, timeout=5))
    assert 5 <= world.now < 8


def test_waiting_for_a_server_that_is_away_ends_at_its_own_deadline() -> None:
    world = World([LOST])
    with pytest.raises(ApiUnavailable):
        world.run(world.client.wait(JOB, timeout=5))
    assert world.now < 10


def test_a_result_that_is_not_there_yet_is_asked_for_again() -> None:
    world = World([problem(409, "not-finished", "1"), answer(200, {"jobId": JOB, "result": [1, None]})])
    assert world.run(world.client.result(JOB)) == [1, None]


@pytest.mark.parametrize(
    "content", [b"<html>", b"[]", b"{}", b"\xff", b'{"jobId": 1}', json.dumps(VIEW | {"status": "X"}).encode()]
)
def test_an_answer_of_another_server_raises_its_own_error(content: bytes) -> None:
    world = World([Response(status=200, headers={}, content=content)])
    with pytest.raises(ApiError, match="base URL"):
        submit(world)


@pytest.mark.parametrize("payload", [{"x": float("nan")}, {"x": object()}, {"x": "\ud800"}, {"x": {1, 2}}])
def test_what_is_not_json_is_refused_before_anything_is_sent(payload: dict[str, Any]) -> None:
    world = World([answer()])
    with pytest.raises(InvalidJob, match="nothing was sent"):
        world.run(world.client.submit("K", payload))
    assert world.sent == []


def test_many_jobs_are_one_request_and_too_many_are_none() -> None:
    world = World([answer(202, {"jobs": [VIEW, VIEW]})])
    jobs = [NewJob(kind="K", payload={"n": n}) for n in range(2)]
    assert len(world.run(world.client.submit_many(jobs))) == 2
    assert world.sent[0].request.keys == tuple(job.idempotency_key for job in jobs)
    for wrong in ([], [NewJob(kind="K")] * 1_001):
        with pytest.raises(InvalidJob, match="in parts"):
            world.run(world.client.submit_many(wrong))
    assert len(world.sent) == 1


def test_a_time_without_zone_is_refused() -> None:
    with pytest.raises(InvalidJob, match="time zone"):
        submit(World([answer()]), run_at=datetime(2030, 1, 1))  # noqa: DTZ001 (that is the mistake)


def test_an_id_cannot_leave_its_place_in_the_path() -> None:
    world = World([answer(200)])
    world.run(world.client.get("../ops/jobs?x=#\0"))
    assert world.sent[0].request.path == "/jobs/..%2Fops%2Fjobs%3Fx%3D%23%00"


# Events


def stream(*connections: Iterable[str] | Reply) -> tuple[list[Any], list[Sent]]:
    """Each connection sends its lines, then ends; the views that were yielded, and what was opened."""
    world = World(list(connections))

    async def collect() -> list[Any]:
        return [view async for view in events(world.session, JOB)]

    return world.run(collect()), world.sent


def event(ident: str, data: object) -> list[str]:
    return ["event: status", f"id: {ident}", f"data: {json.dumps(data)}", ""]


def test_events_are_given_until_the_last() -> None:
    seen, opened = stream([": hello", "", *event("a", VIEW), ": beat", *event("b", DONE), "junk"])
    assert [view.status for view in seen] == ["PENDING", "COMPLETED"]
    assert len(opened) == 1


def test_a_stream_that_breaks_is_taken_up_after_the_last_whole_event() -> None:
    cut = [*event("a", VIEW), "event: status", "id: b", 'data: {"jobId']
    seen, opened = stream(cut, LOST, answer(503), event("c", DONE))
    assert [view.status for view in seen] == ["PENDING", "COMPLETED"]
    assert [dict(step.request.headers).get("Last-Event-ID") for step in opened] == [None, "a", "a", "a"]


def test_a_stream_that_is_refused_is_not_tried_again() -> None:
    with pytest.raises(JobUnknown):
        stream(problem(404, "not-found"))


def test_the_parser_knows_the_corners_of_the_format() -> None:
    parser = Parser()
    found = [
        got
        for line in ["data:a", "data: b", "id", "retry: 5", ":x", "", "", "event: e", "", "data:", ""]
        for got in parser.feed(line)
    ]
    assert found == [("message", "a\nb"), ("message", "")]


# Faces


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8484", "ftp://x", "http://", "http://u:secret@h", "http://h?x=1", "http://[::1"]
)
def test_a_wrong_base_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Client(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("token", ["", "lh_x\n", "lh x", "lh_ü", "lh_\0"])
def test_a_broken_token_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Client("http://127.0.0.1:1", token=token)
    assert not token or token not in str(caught.value)


def parts(thing: object, seen: set[int]) -> Iterator[object]:
    """The objects of ours and of httpx that this one is made of, and their attributes."""
    seen.add(id(thing))
    yield thing
    names = [*getattr(thing, "__dict__", ()), *getattr(type(thing), "__slots__", ())]
    for value in [getattr(thing, name, None) for name in names]:
        yield value
        if id(value) not in seen and type(value).__module__.startswith(("leasehold.", "httpx.")):
            yield from parts(value, seen)


def test_a_client_does_not_show_its_token() -> None:
    with Client("http://127.0.0.1:1", token="lh_SECRET") as client:
        assert not [part for part in parts(client, set()) if "SECRET" in repr(part)]


def test_both_faces_offer_the_same() -> None:
    public = {name for name in vars(Client) if not name.startswith("_")}
    assert public == {name for name in vars(AsyncClient) if not name.startswith("_")}
    assert all(getattr(Client, name).__doc__ for name in public)
