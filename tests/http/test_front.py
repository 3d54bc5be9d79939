"""What every answer carries, and what a request may look like: ids, versions, HEAD, rates, keys, sizes of things."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import httpx
import pytest

from faults.waiting import stays, until
from leasehold.tokens import make_token
from tests.http.conftest import Sql, intent, key, submitted
from tests.http.raw import exchange, request
from tests.http.running import ROOT, Served, serving, token_for


@pytest.fixture(scope="module")
def served(home_dsn: str) -> Iterator[Served]:
    with serving(home_dsn, "--access-log") as running:
        yield running


# -- ids and versions


def test_every_answer_has_the_requests_id(served: Served, http: httpx.Client) -> None:
    for method, path in (("POST", "/jobs"), ("GET", "/healthz"), ("GET", "/unknown"), ("DELETE", "/jobs/x")):
        body = intent() if method == "POST" else None
        mine = http.request(method, path, headers={"x-request-id": "shop-17.a_b"}, json=body)
        assert mine.headers["x-request-id"] == "shop-17.a_b"
        made = {http.request(method, path, json=intent() if body else None).headers["x-request-id"] for _ in range(3)}
        assert len(made) == 3
        assert all(len(one) == 16 for one in made)
    for odd in (b"", b"a b", b"x" * 129, b"\xff", b"a\tb"):
        answer = exchange(served.port, request(b"GET", b"/healthz", headers=[(b"X-Request-Id", odd)]))
        assert answer is not None
        assert len(answer.headers["x-request-id"]) == 16


def test_the_log_names_the_request(served: Served, http: httpx.Client) -> None:
    wanted = f"trace-{uuid4()}"
    http.get("/jobs/nope", headers={"x-request-id": wanted})
    until(lambda: any(wanted in line and "/jobs/nope" in line for line in served.log.read_text().splitlines()))


def test_the_version_is_in_every_answer_and_may_be_in_the_path(http: httpx.Client) -> None:
    body = intent()
    first = http.post("/v1/jobs", json=body)
    assert first.status_code == 202
    assert first.headers["api-version"] == "1"
    assert first.headers["location"] == f"/v1/jobs/{first.json()['jobId']}"
    assert http.post("/jobs", json=body).json() == first.json()
    assert http.get(first.headers["location"]).json() == first.json()
    missing = http.get("/v1/jobs/nope")
    assert (missing.status_code, missing.json()["type"]) == (404, "/v1/problems/not-found")
    assert http.get(missing.json()["type"]).status_code == 200
    for path in ("/v2/jobs", "/v1", "/v1jobs", "/v1/v1/jobs"):
        assert http.get(path).status_code == 404


def test_behind_a_proxy_that_takes_its_path_off_all_links_have_it(dsn: str) -> None:
    with serving(dsn, "--root-path", "/leasehold/", token=True) as below:
        headers = {"authorization": f"Bearer {below.token}"}
        answer = httpx.post(f"{below.url}/jobs", json=intent(), headers=headers)
        assert answer.headers["location"] == f"/leasehold/jobs/{answer.json()['jobId']}"
        assert httpx.get(f"{below.url}/nope", headers=headers).json()["type"] == "/leasehold/problems/not-found"
        assert httpx.get(f"{below.url}/dashboard/").headers["location"] == "/leasehold/dashboard/sign-in"
    wrong = subprocess.run(
        [sys.executable, "-m", "leasehold", "serve", "--root-path", "a b"], cwd=ROOT, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert wrong.returncode == 2
    assert "--root-path" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_head_is_get_without_a_body(served: Served, http: httpx.Client) -> None:
    job = submitted(http)
    for path in (f"/jobs/{job['jobId']}", "/healthz", "/ops/jobs", "/openapi.json", "/jobs/nope", f"/jobs/{uuid4()}"):
        whole, head = http.get(path), http.head(path)
        assert (head.status_code, head.content) == (whole.status_code, b""), path
        for name in ("content-type", "etag", "content-length"):
            assert head.headers.get(name) == whole.headers.get(name), f"{path} {name}"
    stream = http.head(f"/jobs/{job['jobId']}/events")
    assert stream.status_code == 405
    assert http.head("/jobs").status_code == 405


def test_headers_say_what_is_left_of_a_rate(home_dsn: str, dsn: str) -> None:
    token = token_for(dsn, "status", rate=2)
    with serving(dsn) as limited, httpx.Client(base_url=limited.url, timeout=60) as http:
        headers = {"authorization": f"Bearer {token}"}
        answers = [http.get(f"/jobs/{uuid4()}", headers=headers) for _ in range(12)]
        assert answers[0].headers["ratelimit-policy"] == '"token";q=2;w=1'
        assert answers[0].headers["ratelimit"].startswith('"token";r=1;t=')
        over = [answer for answer in answers if answer.status_code == 429]
        assert over
        assert all(answer.headers["ratelimit"] == '"token";r=0;t=1' for answer in over)


# -- keys


def test_a_used_key_with_other_parameters_is_pointed_out(http: httpx.Client) -> None:
    body = intent(queue="mail", priority=3)
    first = http.post("/jobs", json=body)
    assert "idempotency-differs" not in first.headers
    assert "idempotency-differs" not in http.post("/jobs", json=body).headers
    less = {name: value for name, value in body.items() if name not in ("queue", "priority")}
    assert "idempotency-differs" not in http.post("/jobs", json=less).headers
    for changes, named in (
        ({"payload": {"to": "other"}}, "payload"),
        ({"queue": "other"}, "queue"),
        ({"priority": 4, "jobType": "OTHER"}, "jobType, priority"),
    ):
        other = http.post("/jobs", json=body | changes)
        assert (other.status_code, other.headers["idempotency-differs"]) == (202, named)
        assert other.json() == first.json()
        strict = http.post("/jobs", json=body | changes | {"idempotency": "strict"})
        assert (strict.status_code, strict.json()["type"]) == (409, "/problems/idempotency-conflict")
        batch = http.post("/jobs/batch", json={"jobs": [body | changes | {"idempotency": "strict"}]})
        assert batch.status_code == 409


def test_strict_in_sql_is_about_the_queue_and_the_priority_too(sql: Sql) -> None:
    used = key()
    call = "select enqueue('k', idempotency_key => %s, strict => true, queue => %s, priority => %s)"
    first = sql.execute(call, [used, "mail", 3]).fetchone()
    assert sql.execute(call, [used, "mail", 3]).fetchone() == first
    assert sql.execute(call, [used, None, None]).fetchone() == first
    for queue, priority in (("other", 3), ("mail", 4)):
        with pytest.raises(Exception, match="idempotency") as refused:
            sql.execute(call, [used, queue, priority])
        assert refused.value.sqlstate == "LH004"  # type: ignore[attr-defined]


def test_two_different_jobs_under_one_key_are_refused_in_a_batch(http: httpx.Client, sql: Sql) -> None:
    one, same = intent(), key()
    twice = [intent(idempotencyKey=same), one, intent(idempotencyKey=same, payload={"to": "other"})]
    refused = http.post("/jobs/batch", json={"jobs": twice})
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/idempotency-conflict")
    assert "jobs.2" in refused.json()["detail"]
    found = sql.execute(
        "select count(*) as n from jobs where idempotency_key = any(%s)", [[same, one["idempotencyKey"]]]
    )
    assert found.fetchone() == {"n": 0}
    equal = http.post("/jobs/batch", json={"jobs": [twice[0], one, twice[0]]}).json()["jobs"]
    assert equal[0] == equal[2]


@pytest.mark.parametrize(
    ("headers", "status", "name"),
    [
        ([(b"Idempotency-Key", b"a"), (b"Idempotency-Key", b"b")], 400, "key-conflict"),
        ([(b"Idempotency-Key", b"a"), (b"Idempotency-Key", b"a")], 400, "key-conflict"),
        ([(b"Host", b"127.0.0.1")], 400, "malformed-http"),
        ([(b"Content-Encoding", b"gzip")], 415, "unsupported-media-type"),
    ],
)
def test_headers_that_contradict_are_refused(
    served: Served, headers: list[tuple[bytes, bytes]], status: int, name: str
) -> None:
    body = intent()
    if name == "key-conflict":
        del body["idempotencyKey"]
    answer = exchange(served.port, request(body=json.dumps(body).encode(), headers=headers))
    assert answer is not None
    assert (answer.status, answer.json()["type"]) == (status, f"/problems/{name}")
    plain = exchange(
        served.port, request(body=json.dumps(intent()).encode(), headers=[(b"Content-Encoding", b"identity")])
    )
    assert plain is not None
    assert plain.status == 202


# -- what is wrong, in the API's own words


@pytest.mark.parametrize(
    ("query", "field"),
    [("kind=", "kind"), ("kind=%00", "kind"), ("tag=" + "x" * 600, "tag"), ("createdAfter=x", "createdAfter"),
     ("state=nope", "state.0"), ("limit=x", "limit"), ("colour=red", "colour")],
)  # fmt: skip
def test_a_wrong_query_names_the_field_and_nothing_of_ours(http: httpx.Client, query: str, field: str) -> None:
    answer = http.get(f"/ops/jobs?{query}")
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    for word in ("constrained", "function-", "[", "Value error"):
        assert word not in answer.json()["detail"], answer.text


# -- metrics


def test_metrics_have_clean_labels_and_a_restricted_token_sees_its_own(dsn: str, sql: Sql) -> None:
    everything = token_for(dsn, "read", "submit")
    narrow = token_for(dsn, "read", queues=["mail"])
    with serving(dsn) as limited, httpx.Client(base_url=limited.url, timeout=60) as http:
        for queue in ("mail", "secret-queue"):
            body = intent(queue=queue)
            assert http.post("/jobs", json=body, headers={"authorization": f"Bearer {everything}"}).status_code == 202
        whole = http.get("/metrics", headers={"authorization": f"Bearer {everything}"}).text
        assert 'state="queued"} 2.0' in whole
        assert "10 s" not in whole
        assert "leasehold_jobs_succeeded_10s 0.0" in whole
        own = http.get("/metrics", headers={"authorization": f"Bearer {narrow}"}).text
        assert 'leasehold_queue_ready{queue="mail"} 1.0' in own
        for hidden in ("secret-queue", "leasehold_jobs", "leasehold_http"):
            assert hidden not in own


# -- one client leaves room for the others


def test_one_token_cannot_take_all_places_to_wait(dsn: str) -> None:
    greedy, modest = (token_for(dsn, "submit", "read", namespace="n") for _ in range(2))
    with (
        serving(dsn, LEASEHOLD_API_WATCHERS_EACH="3") as limited,
        httpx.Client(base_url=limited.url, timeout=90) as http,
    ):
        headers = {"authorization": f"Bearer {greedy}"}
        job = http.post("/jobs", json=intent(), headers=headers).json()["jobId"]
        with ThreadPoolExecutor(6) as pool:
            waits = [pool.submit(http.get, f"/jobs/{job}?wait=30", headers=headers) for _ in range(6)]
            until(lambda: sum(wait.done() for wait in waits) >= 3, "three are refused")
            refused = [wait.result() for wait in waits if wait.done()]
            assert {answer.status_code for answer in refused} == {503}
            other = {"authorization": f"Bearer {modest}"}
            assert http.get(f"/jobs/{job}?wait=1", headers=other).status_code == 200
            assert http.delete(f"/jobs/{job}", headers=headers).status_code == 200
            assert sorted(wait.result().status_code for wait in waits) == [200] * 3 + [503] * 3


def test_tokens_that_are_made_up_are_looked_up_at_a_rate_and_known_ones_go_on(dsn: str) -> None:
    token = token_for(dsn, "read")
    with (
        serving(dsn, LEASEHOLD_API_UNKNOWN_TOKENS="5") as limited,
        httpx.Client(base_url=limited.url, timeout=60) as http,
    ):
        known = {"authorization": f"Bearer {token}"}
        assert http.get("/ops/jobs", headers=known).status_code == 200
        begin = time.monotonic()
        made_up = [
            http.get("/ops/jobs", headers={"authorization": f"Bearer {make_token(uuid4()).reveal()}"}).status_code
            for _ in range(60)
        ]
        looked_up = made_up.count(401)
        assert set(made_up) <= {401, 429}
        assert looked_up <= 7 + 5 * (time.monotonic() - begin)
        # For longer than a token is remembered.
        stays(lambda: http.get("/ops/jobs", headers=known).status_code == 200, seconds=2.5, pause=0.25)


def test_asking_whether_it_is_ready_does_not_keep_the_database_busy(
    http: httpx.Client, home_dsn: str, sql: Sql
) -> None:
    def calls() -> int:
        found = sql.execute(
            "select xact_commit as n from pg_stat_database where datname = current_database()"
        ).fetchone()
        assert found is not None
        return int(found["n"])

    def settled() -> int:
        """The statistics come with a delay."""
        before, since = calls(), time.monotonic()
        while time.monotonic() - since < 3:
            time.sleep(0.5)
            if (now := calls()) > before + 10:
                before, since = now, time.monotonic()
        return before

    before, begin = settled(), time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        assert {answer.status_code for answer in pool.map(lambda _: http.get("/readyz"), range(400))} == {200}
    asked = settled() - before
    assert asked < 200 + 10 * (time.monotonic() - begin), "the server's own calls go on meanwhile"
