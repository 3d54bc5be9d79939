"""Clients that take their time: dropped by a deadline, while all others are served as if they were not there."""

import asyncio
import json
import socket
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from statistics import median

import psycopg
import pytest

from faults.waiting import auntil
from tests.conftest import Admin
from tests.http.raw import RawAnswer, parse, request
from tests.http.running import Served, serving

SLOW = 200
DEADLINE = 2.0
LATEST = 60.0
"""Far beyond the deadline: what counts is that it comes."""


@pytest.fixture(scope="module")
def api(admin: Admin, migrated: str) -> Iterator[Served]:
    names = ("LEASEHOLD_API_BODY_SECONDS", "LEASEHOLD_API_HEAD_SECONDS", "LEASEHOLD_API_SEND_SECONDS")
    with (
        admin.database(template=migrated) as name,
        serving(admin.server.dsn(name), token=True, **dict.fromkeys(names, str(DEADLINE))) as served,
    ):
        yield served


def body(key: str) -> bytes:
    return json.dumps({"jobType": "K", "payload": {"a": "x" * 2_000}, "idempotencyKey": key}).encode()


async def ask(api: Served, data: bytes) -> RawAnswer:
    """A healthy request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    try:
        writer.write(data)
        async with asyncio.timeout(LATEST):
            return await answer_of(reader)
    finally:
        writer.close()


async def answer_of(reader: asyncio.StreamReader) -> RawAnswer:
    got = b""
    while (answer := parse(got, closed=False)) is None:
        part = await reader.read(65536)
        assert part, f"closed after {got!r}"
        got += part
    return answer


@asynccontextmanager
async def healthy(api: Served) -> AsyncIterator[list[float]]:
    """Submits jobs all the while; afterwards the seconds that each took. All have to be accepted."""
    took: list[float] = []

    async def one() -> float:
        began = time.monotonic()
        answer = await ask(api, request(body=body(f"healthy-{uuid.uuid4()}"), token=api.token))
        assert answer.status == 202
        return time.monotonic() - began

    async def submit() -> None:
        while True:
            took.append(await one())
            await asyncio.sleep(0.02)

    usual = median([await one() for _ in range(5)])
    task = asyncio.create_task(submit())
    try:
        yield took
        await auntil(lambda: took or task.done(), "a job was submitted")
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert took
    # A machine that is busy elsewhere is not ours; a request stuck behind the slow ones would take as long as they do.
    assert median(took) < 1.0 + 10 * usual, took


async def drip(api: Served, data: bytes, at_once: int) -> tuple[bytes, float]:
    """Send the beginning at once and the rest byte by byte; what came back, and after how long the server was gone.

    By hand, because a StreamWriter that cannot write any more throws away what there is to read.
    """
    loop = asyncio.get_running_loop()
    with socket.create_connection(("127.0.0.1", api.port)) as peer:
        peer.setblocking(False)
        await loop.sock_sendall(peer, data[:at_once])
        began = time.monotonic()
        reading = asyncio.create_task(read_all(peer))
        for place in range(at_once, len(data)):
            if reading.done() or time.monotonic() - began > LATEST:
                break
            with suppress(ConnectionError):
                await loop.sock_sendall(peer, data[place : place + 1])
            await asyncio.wait([reading], timeout=0.1)
        async with asyncio.timeout(LATEST):
            return await reading, time.monotonic() - began


async def read_all(peer: socket.socket) -> bytes:
    got = b""
    with suppress(ConnectionError):
        while part := await asyncio.get_running_loop().sock_recv(peer, 65536):
            got += part
    return got


def check_times(times: list[float]) -> None:
    assert min(times) > DEADLINE * 0.5, "they had their time"
    assert max(times) < LATEST


async def test_bodies_that_come_byte_by_byte_are_dropped_and_no_other_client_notices(api: Served) -> None:
    async with healthy(api):
        slow = [request(body=body(f"slow-{n}"), token=api.token) for n in range(SLOW)]
        ends = await asyncio.gather(*(drip(api, data, data.index(b"\r\n\r\n") + 4) for data in slow))
    answers = [parse(got, closed=True) for got, _ in ends]
    assert {answer.status for answer in answers if answer is not None} == {408}
    # A byte that arrives after the server has closed makes it reset the connection, answer and all.
    assert sum(answer is not None for answer in answers) >= SLOW // 2, "they get the reason"
    assert {answer.json()["type"] for answer in answers if answer is not None} == {"/problems/slow-body"}
    check_times([seconds for _, seconds in ends])
    with psycopg.connect(api.dsn) as sql:
        found = sql.execute("select count(*) from leasehold.jobs where idempotency_key like 'slow%'").fetchone()
    assert found == (0,)


async def test_chunks_that_come_byte_by_byte_are_dropped_too(api: Served) -> None:
    head = request(length=None, headers=[(b"Transfer-Encoding", b"chunked")], token=api.token)
    async with healthy(api):
        ends = await asyncio.gather(*(drip(api, head + b"1\r\n \r\n" * 500, len(head)) for _ in range(50)))
    answers = [parse(got, closed=True) for got, _ in ends]
    assert {answer.status for answer in answers if answer is not None} == {408}
    check_times([seconds for _, seconds in ends])


async def test_headers_that_come_byte_by_byte_are_dropped_and_no_other_client_notices(api: Served) -> None:
    data = request(b"GET", b"/healthz", headers=[(b"X-%d" % n, b"y" * 50) for n in range(50)])
    async with healthy(api):
        ends = await asyncio.gather(*(drip(api, data, 1) for _ in range(SLOW)))
    assert {got for got, _ in ends} == {b""}
    check_times([seconds for _, seconds in ends])


async def test_connections_that_say_nothing_are_dropped(api: Served) -> None:
    async with healthy(api):
        ends = await asyncio.gather(*(drip(api, b"", 0) for _ in range(SLOW)))
    assert {got for got, _ in ends} == {b""}
    check_times([seconds for _, seconds in ends])


async def test_line_ends_without_a_request_keep_no_connection(api: Served) -> None:
    ends = await asyncio.gather(*(drip(api, b"\r\n" * 500, 2) for _ in range(20)))
    check_times([seconds for _, seconds in ends])


async def test_a_second_request_has_its_deadline_too(api: Served) -> None:
    first = request(b"GET", b"/healthz")
    got, seconds = await drip(api, first + b"GET /healthz HTTP/1.1\r\nX: " + b"y" * 500, len(first))
    answer = parse(got, closed=True)
    assert answer is not None
    assert answer.status == 200
    check_times([seconds])


async def test_a_body_that_was_not_asked_for_keeps_no_connection(api: Served) -> None:
    head = request(b"GET", b"/healthz", length=b"500")
    got, seconds = await drip(api, head + b"x" * 500, len(head))
    answer = parse(got, closed=True)
    assert answer is not None
    assert answer.status == 200
    check_times([seconds])


async def test_who_does_not_read_the_answers_is_dropped(api: Served) -> None:
    """Asks for a large result again and again without reading: once all buffers are full, that is ended."""
    made = await ask(api, request(body=body("large"), token=api.token))
    large = json.dumps("x" * 500_000)
    with psycopg.connect(api.dsn, autocommit=True, options="-c search_path=leasehold") as sql:
        sql.execute("select claim_job(%s, 'w')", [made.json()["jobId"]])
        sql.execute("select complete('w', array[%s::uuid], array[1], array[%s::jsonb])", [made.json()["jobId"], large])
    target = f"/jobs/{made.json()['jobId']}/result".encode()

    async def greedy() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", api.port, limit=1)
        try:
            async with asyncio.timeout(LATEST * 2):
                writer.write(request(b"GET", target, token=api.token) * 50)
                while True:
                    # Fails when the server has dropped us.
                    writer.write(b"\r\n")
                    await writer.drain()
                    await asyncio.sleep(0.1)
        except ConnectionError:
            pass
        finally:
            writer.close()

    before = api.memory()
    async with healthy(api):
        await asyncio.gather(*(greedy() for _ in range(20)))
    assert api.memory() - before < 100 * 1024 * 1024


async def test_streams_that_are_not_read_hurt_no_other_client(api: Served) -> None:
    made = await ask(api, request(body=body("watched"), token=api.token))
    target = f"/jobs/{made.json()['jobId']}/events".encode()
    peers = [await asyncio.open_connection("127.0.0.1", api.port, limit=1) for _ in range(SLOW)]
    try:
        for _, writer in peers:
            writer.write(request(b"GET", target, token=api.token))
        before = api.memory()
        async with healthy(api):
            await asyncio.sleep(DEADLINE * 2)  # for as long as jobs are submitted beside those streams
        assert api.memory() - before < 50 * 1024 * 1024
        # One who does read is served.
        reader, writer = peers[0]
        async with asyncio.timeout(LATEST):
            assert b"event: status" in await reader.read(65536) + await reader.read(65536)
    finally:
        for _, writer in peers:
            writer.close()
