"""A job's changes as server-sent events."""

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

import httpx
from starlette.types import Message, Receive, Scope, Send

import leasehold
from faults.waiting import until
from leasehold import App
from leasehold.http.settings import ApiSettings
from leasehold.tokens import parse_token
from tests.http.conftest import Sql, intent, key, run, submitted
from tests.http.running import serving, token_for


def events(http: httpx.Client, job_id: str, **headers: str) -> list[dict[str, Any]]:
    """All events of a stream, read to its end."""
    return list(stream(http, job_id, threading.Event(), **headers))


def stream(http: httpx.Client, job_id: str, begun: threading.Event, **headers: str) -> Iterator[dict[str, Any]]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with http.stream("GET", f"/jobs/{job_id}/events", headers=named) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        event: dict[str, Any] = {}
        for line in answer.iter_lines():
            begun.set()
            name, _, value = line.partition(": ")
            if not line and event:
                yield event
                event = {}
            elif name in {"event", "id"}:
                event[name] = value
            elif name == "data":
                event["data"] = json.loads(value)


def test_a_stream_shows_each_change_and_ends_with_the_job(http: httpx.Client, sql: Sql) -> None:
    job = submitted(http, queue=key())
    begun = threading.Event()
    seen: list[dict[str, Any]] = []

    def read() -> None:
        for event in stream(http, job["jobId"], begun):
            seen.append(event)  # noqa: PERF402 (one at a time: the test waits for them)

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        assert begun.wait(60)
        run(sql, job["jobId"], "running")
        until(lambda: [event["data"]["status"] for event in seen] == ["PENDING", "RUNNING"])
        sql.execute("select complete('secret-worker', array[%s::uuid], '{1}')", [job["jobId"]])
        reading.result(60)
    assert [event["data"]["status"] for event in seen] == ["PENDING", "RUNNING", "COMPLETED"]
    assert {event["event"] for event in seen} == {"status"}
    assert len({event["id"] for event in seen}) == len(seen)
    assert seen[-1]["data"] == http.get(f"/jobs/{job['jobId']}").json()
    assert seen[-1]["id"] == http.get(f"/jobs/{job['jobId']}").headers["etag"].strip('"')


def test_the_stream_of_a_finished_job_is_its_last_event(http: httpx.Client, sql: Sql) -> None:
    job = submitted(http, queue=key())
    run(sql, job["jobId"], "dead")
    (only,) = events(http, job["jobId"])
    assert only["data"]["status"] == "FAILED"
    assert "secret" not in str(only)


def test_a_stream_that_is_resumed_does_not_repeat_what_was_seen(http: httpx.Client, sql: Sql) -> None:
    job = submitted(http, queue=key())
    etag = http.get(f"/jobs/{job['jobId']}").headers["etag"].strip('"')
    run(sql, job["jobId"], "success")
    (only,) = events(http, job["jobId"], last_event_id=etag)
    assert only["data"]["status"] == "COMPLETED"
    assert events(http, job["jobId"], last_event_id=only["id"]) == []


def test_a_server_that_is_stopped_ends_its_streams(dsn: str) -> None:
    with serving(dsn) as served, httpx.Client(base_url=served.url, timeout=90) as http:
        job = submitted(http)
        begun = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(lambda: list(stream(http, job["jobId"], begun)))
            assert begun.wait(60)
            served.process.terminate()
            assert [event["data"]["status"] for event in reading.result(60)] == ["PENDING"]
        assert served.process.wait(60) == 0


def test_clients_that_hang_up_leave_nothing_behind(http: httpx.Client) -> None:
    job = submitted(http)
    for _ in range(5):
        begun = threading.Event()
        reading = stream(http, job["jobId"], begun)
        assert next(reading)["data"]["status"] == "PENDING"
        reading.close()
    until(lambda: "leasehold_http_watchers 0.0" in http.get("/metrics").text)


async def test_a_stream_ends_when_its_token_is_revoked(dsn: str) -> None:
    token = token_for(dsn, "submit", "read")
    settings = ApiSettings(keepalive_seconds=0.2, token_seconds=0.1)
    async with App(dsn=dsn) as app:
        control = leasehold.api(app, settings=settings)
        headers = {"authorization": f"Bearer {token}"}
        alive = asyncio.Event()

        async def overheard(scope: Scope, receive: Receive, send: Send) -> None:
            async def hear(message: Message) -> None:
                if message.get("body") == b": still here\n\n":
                    alive.set()
                await send(message)

            await control(scope, receive, hear)

        transport = httpx.ASGITransport(overheard)
        async with (
            aclosing(control.state.leasehold),
            httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client,
        ):
            job = (await client.post("/jobs", json=intent())).json()
            reading = asyncio.create_task(client.get(f"/jobs/{job['jobId']}/events"))
            async with asyncio.timeout(60):
                await alive.wait()
            assert not reading.done()
            parsed = parse_token(token)
            assert parsed is not None
            database = await app.adatabase()
            await database.arun(database.store.revoke_token(parsed.id))
            async with asyncio.timeout(60):
                answer = await reading
        assert answer.text.count("event: status") == 1
