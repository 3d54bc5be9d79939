"""The API inside another application."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount

import leasehold
from leasehold import App, ConfigError
from leasehold.http.settings import ApiSettings
from tests.http.conftest import intent
from tests.http.running import token_for

Visit = Callable[[httpx.AsyncClient], Awaitable[None]]


def visit(web: FastAPI, act: Visit) -> None:
    """Run an application in an event loop of its own, from its start to its end."""

    async def live() -> None:
        async with (
            web.router.lifespan_context(web),
            httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://test") as http,
        ):
            await act(http)

    asyncio.run(live())


@pytest.fixture
async def app(dsn: str) -> AsyncIterator[App]:
    async with App(dsn=dsn) as made:
        yield made


async def test_it_works_below_a_path_without_an_explicit_start(app: App) -> None:
    control = leasehold.api(app, tokens=False)
    web = FastAPI()
    web.mount("/leasehold", control)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://test") as http:
        answer = await http.post("/leasehold/jobs", json=intent())
        assert answer.status_code == 202
        assert answer.headers["location"] == f"/leasehold/jobs/{answer.json()['jobId']}"
        assert (await http.get(answer.headers["location"])).json() == answer.json()
        missing = await http.get("/leasehold/jobs/nope")
        assert missing.json()["type"] == "/leasehold/problems/not-found"
        assert (await http.get(missing.json()["type"])).status_code == 200
        described = (await http.get("/leasehold/openapi.json")).json()
        assert "/jobs" in described["paths"]
    await control.state.leasehold.aclose()


async def test_a_mounted_api_needs_tokens_unless_they_are_switched_off(app: App, dsn: str) -> None:
    control = leasehold.api(app)
    web = Starlette(routes=[Mount("/jobs-api", control)])
    token = token_for(dsn, "submit")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://test") as http:
        assert (await http.post("/jobs-api/jobs", json=intent())).status_code == 401
        answer = await http.post("/jobs-api/jobs", json=intent(), headers={"authorization": f"Bearer {token}"})
        assert answer.status_code == 202
    await control.state.leasehold.aclose()


async def test_without_tokens_a_page_of_another_site_changes_nothing(app: App) -> None:
    foreign = {"host": "evil.example", "origin": "http://other.example", "sec-fetch-site": "cross-site"}
    control = leasehold.api(app, tokens=False)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(control), base_url="http://test") as http:
        assert (await http.post("/jobs", json=intent(), headers=foreign)).status_code == 403
        assert (await http.put("/ops/limits/global", json={"maxRunning": 0}, headers=foreign)).status_code == 403
        assert (await http.get("/ops/limits")).json()["limits"] == []
        own = {"origin": "http://test", "sec-fetch-site": "same-origin"}
        assert (await http.post("/jobs", json=intent(), headers=own)).status_code == 202
    await control.state.leasehold.aclose()
    named = leasehold.api(app, settings=ApiSettings(tokens=False, origins=frozenset({"http://other.example"})))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(named), base_url="http://test") as http:
        assert (await http.post("/jobs", json=intent(), headers=foreign)).status_code == 202
    await named.state.leasehold.aclose()


async def test_a_middleware_of_the_users_sees_every_request(app: App) -> None:
    control = leasehold.api(app, tokens=False)

    async def mark(request: Request, call_next: RequestResponseEndpoint) -> Response:
        answer = await call_next(request)
        answer.headers["x-mine"] = "yes"
        return answer

    control.add_middleware(BaseHTTPMiddleware, dispatch=mark)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(control), base_url="http://test") as http:
        answers = [
            await http.post("/jobs", json=intent()),
            await http.post("/jobs", json={}),
            await http.get("/healthz"),
        ]
    assert [answer.status_code for answer in answers] == [202, 422, 200]
    assert {answer.headers["x-mine"] for answer in answers} == {"yes"}
    await control.state.leasehold.aclose()


async def test_closing_is_safe_at_any_time_and_it_can_be_used_again(app: App) -> None:
    control = leasehold.api(app, tokens=False)
    await control.state.leasehold.aclose()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(control), base_url="http://test") as http:
        for _ in range(2):
            assert (await http.post("/jobs", json=intent())).status_code == 202
            await control.state.leasehold.aclose()
            await control.state.leasehold.aclose()


def test_its_own_lifespan_and_several_event_loops_one_after_the_other(dsn: str) -> None:
    with App(dsn=dsn) as app:
        control = leasehold.api(app, settings=ApiSettings(tokens=False))

        async def submit_twice(http: httpx.AsyncClient) -> None:
            body = intent()
            assert (await http.post("/jobs", json=body)).json() == (await http.post("/jobs", json=body)).json()

        visit(control, submit_twice)
        visit(control, submit_twice)


def test_the_hosts_lifespan_can_close_it(dsn: str) -> None:
    with App(dsn=dsn) as app:
        control = leasehold.api(app, tokens=False)

        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            yield
            await control.state.leasehold.aclose()

        web = FastAPI(lifespan=lifespan)
        web.mount("/leasehold", control)

        async def submit(http: httpx.AsyncClient) -> None:
            assert (await http.post("/leasehold/jobs", json=intent())).status_code == 202

        visit(web, submit)


async def test_a_database_that_is_not_there_is_503_and_no_hang() -> None:
    async with App(dsn="postgresql://127.0.0.1:1/nowhere") as app:
        control = leasehold.api(app, tokens=False)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(control), base_url="http://test") as http:
            answer = await http.post("/jobs", json=intent())
            assert (answer.status_code, answer.json()["type"]) == (503, "/problems/database-unavailable")
            assert answer.headers["retry-after"] == "1"
        await control.state.leasehold.aclose()


def test_a_schema_that_is_not_there_is_said_at_once(empty_dsn: str) -> None:
    async def ask(http: httpx.AsyncClient) -> None:
        for answer in (await http.post("/jobs", json=intent()), await http.get("/readyz")):
            assert (answer.status_code, answer.json()["type"]) == (503, "/problems/schema-mismatch")

    with App(dsn=empty_dsn) as app:
        visit(leasehold.api(app, tokens=False), ask)


def test_without_starlette_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name == "leasehold.http.app" or name.partition(".")[0] == "starlette":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette", None)
    with App(dsn="postgresql://unknown.invalid/x") as app, pytest.raises(ConfigError, match="pip install"):
        leasehold.api(app)


@pytest.mark.parametrize("what", ["escapes", "a batch"])
async def test_a_large_body_does_not_hold_up_the_others(app: App, what: str) -> None:
    """The event loop turns while a body is read: the longest pause is a small part of the time that it takes."""
    control = leasehold.api(app, tokens=False)
    if what == "escapes":
        path, body = "/jobs", json.dumps(intent(payload={"s": ["ä" * 50 for _ in range(2_400)]}))
    else:
        jobs = [intent(payload={"to": "x" * 1_000, "s": "ä" * 300}) for _ in range(300)]
        path, body = "/jobs/batch", json.dumps({"jobs": jobs})
    assert len(body) > 700_000
    async with httpx.AsyncClient(transport=httpx.ASGITransport(control), base_url="http://test", timeout=90) as http:
        assert (await http.post("/jobs", json=intent())).status_code == 202
        # In time of this process; a machine that is busy elsewhere may still let the loop wait for its turn.
        for _ in range(10):
            pauses: list[float] = []
            turning = asyncio.create_task(turn(pauses))
            begin = time.process_time()
            answer = await http.post(path, content=body, headers={"content-type": "application/json"})
            took = time.process_time() - begin
            turning.cancel()
            assert answer.status_code == 202, answer.text[:300]
            if max(pauses) < took / 2:
                break
        else:
            pytest.fail(f"the loop stood still for {max(pauses):.3f} of {took:.3f} s")
    await control.state.leasehold.aclose()


async def turn(pauses: list[float]) -> None:
    """Note how long each turn of the event loop takes."""
    while True:
        begin = time.process_time()
        await asyncio.sleep(0.001)
        pauses.append(time.process_time() - begin)
