"""Hostile requests against a real server: a clear refusal each, nothing recorded, nothing leaked, nothing down."""

import json
import random
import socket
from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest

from tests.conftest import Admin
from tests.http.corpus import ACCEPTED, MIB, REFUSED, Body, job
from tests.http.declared import Declared, check_problem
from tests.http.raw import exchange, read_answer, request
from tests.http.running import Served, serving
from tests.http.targets import METHODS, PROTOCOL, TARGETS
from tests.survival.conftest import rounds


@pytest.fixture(scope="module")
def api(admin: Admin, migrated: str) -> Iterator[Served]:
    """One server for all: it has to stand the whole of it."""
    with admin.database(template=migrated) as name, serving(admin.server.dsn(name), token=True) as served:
        yield served
        assert served.process.poll() is None, "the server is down"


@pytest.fixture(scope="module")
def declared(api: Served) -> Declared:
    answer = exchange(api.port, request(b"GET", b"/openapi.json", token=api.token))
    assert answer is not None
    return Declared(answer.json())


def recorded(api: Served) -> int:
    with psycopg.connect(api.dsn) as connection:
        found = connection.execute("select count(*) from leasehold.jobs").fetchone()
    assert found is not None
    return found[0]


def post(api: Served, body: Body, target: bytes = b"/jobs") -> bytes:
    return request(b"POST", target, body.content, content_type=body.content_type, token=api.token)


def test_a_hostile_body_is_refused_and_nothing_is_recorded(api: Served, declared: Declared) -> None:
    before = recorded(api)
    wrong = []
    for body in REFUSED:
        answer = exchange(api.port, post(api, body))
        assert answer is not None, body.name
        wrong += declared.complaints("POST", b"/jobs", answer)
        if answer.status not in body.statuses:
            wrong.append(f"{body.name}: {answer.status} {answer.body[:200]!r}")
    assert not wrong, "\n".join(wrong)
    assert recorded(api) == before


def test_one_hostile_job_among_many_refuses_them_all(api: Served, declared: Declared) -> None:
    before = recorded(api)
    wrong = []
    for body in REFUSED:
        if len(body.content) < MIB and body.content_type == b"application/json":
            content = b'{"jobs": [%s, %s]}' % (job(key='"harmless"'), body.content)
            answer = exchange(api.port, request(b"POST", b"/jobs/batch", content, token=api.token))
            assert answer is not None, body.name
            wrong += declared.complaints("POST", b"/jobs/batch", answer)
            if answer.status not in {400, 413, 422}:
                wrong.append(f"{body.name}: {answer.status} {answer.body[:200]!r}")
    assert not wrong, "\n".join(wrong)
    assert recorded(api) == before


@pytest.mark.parametrize("number", range(len(ACCEPTED)), ids=[name for name, _ in ACCEPTED])
def test_what_only_looks_hostile_comes_back_equal(api: Served, declared: Declared, number: int) -> None:
    name, payload = ACCEPTED[number]
    content = {"jobType": "K", "payload": payload, "idempotencyKey": name}
    for ascii_only in (True, False):
        answer = exchange(
            api.port, request(body=json.dumps(content, ensure_ascii=ascii_only).encode(), token=api.token)
        )
        assert answer is not None
        declared.check("POST", b"/jobs", answer)
        assert answer.status == 202, answer
    with psycopg.connect(api.dsn) as connection:
        stored = connection.execute("select payload::text from leasehold.jobs where idempotency_key = %s", [name])
        rows = stored.fetchall()
    assert len(rows) == 1
    assert json.loads(rows[0][0]) == payload


def test_every_target_is_answered_as_declared_whatever_the_method(api: Served, declared: Declared) -> None:
    before = recorded(api)
    wrong = []
    for target in TARGETS:
        for method in METHODS:
            if target == b"/ops/tokens" and method == b"POST":
                continue  # a body that is wrong for tokens is the business of the generated cases
            data = request(method, target, b"{}" if method in {b"POST", b"PUT", b"PATCH"} else b"", token=api.token)
            answer = exchange(api.port, data)
            assert answer is not None, (method, target[:100])
            wrong += declared.complaints(method.decode(), target, answer)
            assert "x-injected" not in answer.headers
    assert not wrong, "\n".join(wrong)
    assert recorded(api) == before


def test_a_body_that_never_ends_is_cut_off(api: Served, declared: Declared) -> None:
    head = request(length=None, headers=[(b"Transfer-Encoding", b"chunked")], token=api.token)
    with socket.create_connection(("127.0.0.1", api.port), timeout=30) as peer:
        with suppress(ConnectionError):
            peer.sendall(head)
            for _ in range(200):
                peer.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
        answer = read_answer(peer, 30)
    # A server that closes while we are still sending may take its answer with it.
    if answer is not None:
        declared.check("POST", b"/jobs", answer)
        assert answer.status == 413


@pytest.mark.parametrize("length", [b"0", b"1", b"10"])
def test_a_length_that_is_too_short_is_believed_and_the_rest_is_no_second_job(
    api: Served, declared: Declared, length: bytes
) -> None:
    before = recorded(api)
    answer = exchange(api.port, request(body=job(), length=length, token=api.token))
    assert answer is not None
    declared.check("POST", b"/jobs", answer)
    assert answer.status in {400, 422}
    assert recorded(api) == before


def test_a_length_over_the_limit_is_refused_before_the_body_comes(api: Served, declared: Declared) -> None:
    for length in (b"1048577000", b"9223372036854775807"):
        answer = exchange(api.port, request(length=length, token=api.token), timeout=10)
        assert answer is not None
        declared.check("POST", b"/jobs", answer)
        assert answer.status == 413


@pytest.mark.parametrize("number", range(len(PROTOCOL)))
def test_what_is_hardly_http_is_refused_or_dropped(api: Served, number: int) -> None:
    data = PROTOCOL[number]
    try:
        answer = exchange(api.port, data, timeout=20)
    except TimeoutError:
        pytest.fail(f"neither answered nor dropped: {data[:100]!r}")
    if answer is not None:
        assert 400 <= answer.status < 500, answer
        check_problem(answer)
    healthy = exchange(api.port, request(b"GET", b"/healthz"))
    assert healthy is not None
    assert healthy.status == 200


HEADERS = [
    (b"Idempotency-Key", b"\xff\xfe"),
    (b"Idempotency-Key", b"k" * 5_000),
    (b"Idempotency-Key", b""),
    (b"Idempotency-Key", b"other"),
    (b"If-None-Match", b"\xff" * 100),
    (b"Last-Event-ID", b"\xff" * 100),
    (b"Content-Encoding", b"gzip"),
    (b"Accept", b"\xff"),
    (b"Accept", b"text/html"),
    (b"X-Forwarded-For", b"\xff, " * 100),
    (b"X-Forwarded-Proto", b"javascript"),
    (b"Host", b"evil\xff"),
    (b"Transfer-Encoding", b"identity"),
    (b"Cookie", b"a=" + b"b" * 8_000),
    (b"Range", b"bytes=0-0,-1,5-2"),
    (b"Expect", b"100-continue"),
]


@pytest.mark.parametrize(("name", "value"), HEADERS)
def test_hostile_headers_do_no_harm(api: Served, declared: Declared, name: bytes, value: bytes) -> None:
    wanted = b"/jobs/00000000-0000-0000-0000-000000000000"
    for method, target, body in ((b"POST", b"/jobs", b"{}"), (b"GET", wanted, b""), (b"GET", wanted + b"/events", b"")):
        answer = exchange(api.port, request(method, target, body, headers=[(name, value)], token=api.token))
        assert answer is not None
        declared.check(method.decode(), target, answer)
        assert 400 <= answer.status < 500


BROKEN = [b"Bearer", b"Bearer ", b"Bearer \xff", b"Basic eA==", b"bearer x y", b"Bearer lh_", b"lh_x", b"\xff", b""]


@pytest.mark.parametrize("value", [*BROKEN, b"Bearer " + b"a" * 8_000])
def test_a_broken_authorization_is_a_401(api: Served, declared: Declared, value: bytes) -> None:
    for target in (b"/jobs/x", b"/ops/jobs", b"/metrics"):
        answer = exchange(api.port, request(b"GET", target, headers=[(b"Authorization", value)]))
        assert answer is not None
        declared.check("GET", target, answer)
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")


def test_memory_stays_flat_under_hostile_requests(api: Served) -> None:
    """Measured after a round that fills what is filled once: caches, arenas, compiled patterns."""
    bodies = [post(api, body) for body in REFUSED]
    targets = [request(b"GET", target, token=api.token) for target in TARGETS if b"wait" not in target]
    chance = random.Random(1)

    def some(count: int) -> None:
        for data in chance.choices(bodies + targets, k=count):
            exchange(api.port, data)

    some(400)
    before = api.memory()
    some(rounds(800, 20_000))
    grown = api.memory() - before
    assert grown < 24 * MIB, f"grown by {grown / MIB:.1f} MiB"
