"""The contract of POST /jobs and GET /jobs/{jobId}, sentence by sentence, against real server processes."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest

from faults.places import SUBMISSION
from tests.http.conftest import Sql, connect, everything, intent, key, run, submitted
from tests.http.running import Served, serving

MAY_BE_NULL = {"finishedAt", "progress", "progressNote", "error"}
ALWAYS = {"jobId", "jobType", "status", "queue", "runAt", "createdAt", "updatedAt"} | MAY_BE_NULL


def rows(sql: Sql, idempotency_key: str) -> list[dict[str, Any]]:
    return sql.execute("select * from jobs where idempotency_key = %s", [idempotency_key]).fetchall()


# -- POST /jobs: the first request


def test_a_request_with_an_unseen_key_is_answered_with_202_accepted_and_the_job_id_and_its_current_status(
    http: httpx.Client,
) -> None:
    answer = http.post("/jobs", json=intent())
    assert answer.status_code == 202
    assert answer.headers["content-type"] == "application/json"
    job = answer.json()
    assert UUID(job["jobId"]).version == 7
    assert job["status"] == "PENDING"
    assert answer.headers["location"] == f"/jobs/{job['jobId']}"
    assert http.get(answer.headers["location"]).json() == job


def test_the_job_intent_is_durably_recorded_when_the_answer_comes(http: httpx.Client, sql: Sql) -> None:
    body = intent(
        queue="mail", priority=7, runAt="2099-01-31T12:00:00.25+01:00", maxAttempts=3, exclusiveKey="x", tags=["a", "b"]
    )
    job = http.post("/jobs", json=body).json()
    (row,) = rows(sql, body["idempotencyKey"])
    assert str(row["id"]) == job["jobId"]
    assert (row["kind"], row["payload"], row["queue"]) == ("SEND_EMAIL", body["payload"], "mail")
    assert (row["priority"], row["max_attempts"], row["exclusive_key"], row["tags"]) == (7, 3, "x", ["a", "b"])
    assert row["run_at"] == datetime.fromisoformat(body["runAt"])
    assert (row["state"], row["accepted"]) == ("created", True)
    assert job["runAt"] == "2099-01-31T11:00:00.250000Z"


def test_the_api_does_not_execute_the_job_as_part_of_the_request(http: httpx.Client, sql: Sql) -> None:
    body = intent()
    http.post("/jobs", json=body)
    (row,) = rows(sql, body["idempotencyKey"])
    assert (row["state"], row["attempt"], row["claimed_at"]) == ("queued", 0, None)


def test_a_payload_is_recorded_to_the_last_digit(http: httpx.Client, sql: Sql) -> None:
    payload = '{"n": 12345678901234567890.12345678901234567890, "e": 1e300, "z": 1.10, "s": "\\u00e4\\ud83d\\ude00/"}'
    unique = key()
    answer = http.post(
        "/jobs",
        content=f'{{"jobType": "k", "payload": {payload}, "idempotencyKey": "{unique}"}}',
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 202
    stored = sql.execute(
        "select payload = %s::jsonb as same, payload ->> 'n' as n from jobs where idempotency_key = %s",
        [payload, unique],
    )
    assert stored.fetchone() == {"same": True, "n": "12345678901234567890.12345678901234567890"}


# -- POST /jobs: the client's retry


def test_no_new_job_is_created_and_the_existing_job_is_returned(http: httpx.Client, sql: Sql) -> None:
    body = intent()
    first = http.post("/jobs", json=body)
    again = http.post("/jobs", json=body)
    assert (again.status_code, again.json()["jobId"]) == (202, first.json()["jobId"])
    assert len(rows(sql, body["idempotencyKey"])) == 1


def test_retry_responses_are_indistinguishable_from_the_original_success_response(http: httpx.Client) -> None:
    body = intent()
    first = http.post("/jobs", json=body)
    again = http.post("/jobs", json=body)
    assert again.content == first.content
    assert again.headers.keys() == first.headers.keys()
    own = {"date": "", "x-request-id": ""}  # of the request, not of the job
    assert {**again.headers, **own} == {**first.headers, **own}


def test_a_retry_shows_the_current_job_status_in_the_same_shape(http: httpx.Client, sql: Sql) -> None:
    body = intent(queue=key())
    first = http.post("/jobs", json=body).json()
    run(sql, first["jobId"], "success")
    again = http.post("/jobs", json=body)
    assert again.status_code == 202
    assert again.json()["status"] == "COMPLETED"
    assert list(again.json()) == list(first)
    assert again.json() == http.get(f"/jobs/{first['jobId']}").json()


def test_concurrent_requests_cannot_create_duplicate_jobs(http: httpx.Client, sql: Sql) -> None:
    bodies = [intent() for _ in range(5)]
    with ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(lambda n: http.post("/jobs", json=bodies[n % 5]), range(150)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["jobId"] for answer in answers}) == 5
    for body in bodies:
        assert len(rows(sql, body["idempotencyKey"])) == 1


def test_the_database_enforces_uniqueness_of_job_intent(http: httpx.Client, sql: Sql) -> None:
    body = intent()
    http.post("/jobs", json=body)
    with pytest.raises(psycopg.errors.UniqueViolation):
        sql.execute(
            "insert into jobs (max_attempts, kind, idempotency_key) values (5, 'k', %s)", [body["idempotencyKey"]]
        )


def test_the_key_may_come_as_a_header_and_means_the_same(http: httpx.Client) -> None:
    body = intent()
    first = http.post("/jobs", json=body)
    unique = body.pop("idempotencyKey")
    again = http.post("/jobs", json=body, headers={"idempotency-key": unique})
    assert again.content == first.content
    both = http.post("/jobs", json={**body, "idempotencyKey": unique}, headers={"idempotency-key": unique})
    assert both.content == first.content
    other = http.post("/jobs", json={**body, "idempotencyKey": unique}, headers={"idempotency-key": key()})
    assert (other.status_code, other.json()["type"]) == (400, "/problems/key-conflict")


@pytest.mark.parametrize("value", [b"a\tb", b"k\xc3\xa4se", b"x" * 501, b""])
def test_a_key_in_the_header_is_printable_and_short(http: httpx.Client, sql: Sql, value: bytes) -> None:
    before = everything(sql)
    body = {name: part for name, part in intent().items() if name != "idempotencyKey"}
    refused = http.post("/jobs", json=body, headers=[(b"idempotency-key", value)])
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "Idempotency-Key"
    assert everything(sql) == before


def test_without_a_key_nothing_is_recorded_and_the_field_is_named(http: httpx.Client, sql: Sql) -> None:
    before = everything(sql)
    answer = http.post("/jobs", json={"jobType": "k"})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["errors"][0]["field"] == "idempotencyKey"
    assert everything(sql) == before


def test_strict_is_409_when_type_or_payload_differ_and_only_then(http: httpx.Client) -> None:
    body = intent(idempotency="strict")
    first = http.post("/jobs", json=body)
    assert http.post("/jobs", json=body).content == first.content
    for other in ({"jobType": "OTHER"}, {"payload": {"to": "somebody else"}}):
        answer = http.post("/jobs", json=body | other)
        assert (answer.status_code, answer.json()["type"]) == (409, "/problems/idempotency-conflict")
        assert first.json()["jobId"] not in answer.text
        relaxed = http.post("/jobs", json=body | other | {"idempotency": "default"})
        assert relaxed.content == first.content


# -- POST /jobs: the server crashes


@pytest.mark.parametrize("place", SUBMISSION)
def test_a_server_crash_does_not_result_in_duplicate_job_creation(
    served: Served, http: httpx.Client, sql: Sql, place: str
) -> None:
    """One server is really killed there; the client's retry goes to another."""
    body = intent()
    with serving(served.dsn, LEASEHOLD_FAILPOINT=place) as doomed:
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{doomed.url}/jobs", json=body, timeout=30)
        assert doomed.process.wait(60) == -9
    left = rows(sql, body["idempotencyKey"])
    expected = {"before-submit": [], "after-submit": [("created", False)]}.get(place, [("queued", True)])
    assert [(row["state"], row["accepted"]) for row in left] == expected
    answer = http.post("/jobs", json=body)
    assert answer.status_code == 202
    (row,) = rows(sql, body["idempotencyKey"])
    assert answer.json()["jobId"] == str(row["id"])
    assert [row["id"]] == ([old["id"] for old in left] or [row["id"]])
    assert (row["state"], row["accepted"]) == ("queued", True), "accepted by the server that got the second request"


def test_a_failpoint_is_inert_in_production(dsn: str) -> None:
    with serving(dsn, token=True, LEASEHOLD_FAILPOINT="before-answer", LEASEHOLD_ENV="production") as safe:
        headers = {"authorization": f"Bearer {safe.token}"}
        assert httpx.post(f"{safe.url}/jobs", json=intent(), headers=headers, timeout=30).status_code == 202


def test_the_api_is_stateless(served: Served, http: httpx.Client) -> None:
    body = intent()
    first = http.post("/jobs", json=body)
    with serving(served.dsn) as another:
        assert httpx.post(f"{another.url}/jobs", json=body).content == first.content
        assert httpx.get(f"{another.url}/jobs/{first.json()['jobId']}").content == first.content


# -- looking at a job


@pytest.mark.parametrize(
    ("state", "status", "more"),
    [
        ("queued", "PENDING", set()),
        ("running", "RUNNING", {"progress", "progressNote"}),
        ("retry", "PENDING", set()),
        ("success", "COMPLETED", {"finishedAt"}),
        ("dead", "FAILED", {"finishedAt", "error"}),
    ],
)
def test_only_stable_externally_meaningful_fields_are_exposed(
    http: httpx.Client, sql: Sql, state: str, status: str, more: set[str]
) -> None:
    job = submitted(
        http, queue=key(), payload={"secret": "secret payload"}, exclusiveKey=f"secret {key()}", tags=["secret"]
    )
    if state != "queued":
        run(sql, job["jobId"], state)
    answer = http.get(f"/jobs/{job['jobId']}")
    assert answer.status_code == 200
    assert answer.json().keys() == ALWAYS
    assert {name for name in MAY_BE_NULL if answer.json()[name] is not None} == more
    assert (answer.json()["status"], answer.json()["jobType"]) == (status, "SEND_EMAIL")
    everywhere = [
        answer,
        http.get(f"/jobs/{job['jobId']}/result"),
        http.get(f"/jobs/{job['jobId']}/events") if more & {"finishedAt"} else answer,
    ]
    for shown in everywhere:
        assert "secret" not in (shown.text + str(shown.headers)).lower(), "payload, keys, worker, error text"
        for word in ("retry_count", "retryCount", "attempt", "lease", "traceback", "claim", "worker"):
            assert word not in shown.text
    if state == "dead":
        assert answer.json()["error"] == {"reason": "fatal"}


def test_the_endpoint_is_read_only(http: httpx.Client, sql: Sql) -> None:
    job = submitted(http)
    before = everything(sql)
    for path in (
        f"/jobs/{job['jobId']}",
        f"/jobs/{job['jobId']}?wait=1",
        f"/jobs/{job['jobId']}/result",
        f"/jobs/{uuid4()}",
    ):
        for _ in range(3):
            http.get(path)
    assert everything(sql) == before


def test_reading_works_on_a_database_that_refuses_every_write(dsn: str) -> None:
    with serving(dsn) as served, connect(dsn) as sql:
        job = httpx.post(f"{served.url}/jobs", json=intent(queue="q")).json()
        run(sql, job["jobId"], "success")
        name = sql.execute("select current_database() as name").fetchone()
        sql.execute(f"alter database {name and name['name']} set default_transaction_read_only = on")
    with serving(dsn) as served, httpx.Client(base_url=served.url) as http:
        assert http.get(f"/jobs/{job['jobId']}?wait=1").json()["status"] == "COMPLETED"
        assert http.get(f"/jobs/{job['jobId']}/result").json()["result"] == {"sent": 1.10}
        assert "event: status" in http.get(f"/jobs/{job['jobId']}/events").text
        assert http.get(f"/jobs/{uuid4()}").status_code == 404
        assert http.get("/readyz").status_code == 200
        refused = http.post("/jobs", json=intent(), timeout=30)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")


def test_repeated_requests_always_return_the_same_job_state(http: httpx.Client) -> None:
    job = submitted(http)
    answers = {http.get(f"/jobs/{job['jobId']}").content for _ in range(5)}
    assert answers == {json.dumps(job, separators=(",", ":")).encode()}


@pytest.mark.parametrize(
    "job_id",
    [
        "019a5f2e-7c11-7abc-8def-0123456789ab",
        "nope",
        "0",
        "null",
        "{}",
        "%00",
        "a" * 3000,
        "019a5f2e7c117abc8def0123456789ab",
    ],
)
def test_if_the_job_does_not_exist_the_answer_is_404_and_no_state_is_created(
    http: httpx.Client, sql: Sql, job_id: str
) -> None:
    before = everything(sql)
    for path in ("", "/result", "/events"):
        answer = http.get(f"/jobs/{job_id}{path}")
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
        assert answer.json()["type"] == "/problems/not-found"
    assert http.delete(f"/jobs/{job_id}").status_code == 404
    assert everything(sql) == before


def test_the_etag_changes_exactly_when_the_answer_does(http: httpx.Client, sql: Sql) -> None:
    job = submitted(http, queue=key())
    path = f"/jobs/{job['jobId']}"
    first = http.get(path)
    unchanged = http.get(path, headers={"if-none-match": f'"other", W/{first.headers["etag"]}'})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    assert unchanged.headers["etag"] == first.headers["etag"]
    assert http.get(path, headers={"if-none-match": '"other"'}).status_code == 200
    run(sql, job["jobId"], "running")
    changed = http.get(path, headers={"if-none-match": first.headers["etag"]})
    assert changed.status_code == 200
    assert changed.headers["etag"] != first.headers["etag"]


def test_retry_after_is_there_while_the_job_has_not_finished(http: httpx.Client, sql: Sql) -> None:
    job = submitted(http, queue=key())
    assert http.get(f"/jobs/{job['jobId']}").headers["retry-after"] == "1"
    later = submitted(http, runAt="2099-01-01T00:00:00Z")
    assert http.get(f"/jobs/{later['jobId']}").headers["retry-after"] == "60"
    run(sql, job["jobId"], "dead")
    assert "retry-after" not in http.get(f"/jobs/{job['jobId']}").headers


# -- the result, and cancelling


def test_the_result_is_there_when_the_job_is_completed_and_409_before(http: httpx.Client, sql: Sql) -> None:
    job = submitted(http, queue=key())
    path = f"/jobs/{job['jobId']}/result"
    early = http.get(path)
    assert (early.status_code, early.json()["type"], early.headers["retry-after"]) == (
        409,
        "/problems/not-finished",
        "1",
    )
    run(sql, job["jobId"], "success")
    assert http.get(path).text == f'{{"jobId":"{job["jobId"]}","status":"COMPLETED","result":{{"sent": 1.10}}}}'


def test_the_result_of_a_failed_job_is_409_with_a_constant_reason(http: httpx.Client, sql: Sql) -> None:
    job = submitted(http, queue=key())
    run(sql, job["jobId"], "dead")
    answer = http.get(f"/jobs/{job['jobId']}/result?wait=5")
    assert (answer.status_code, answer.json()["type"], answer.json()["reason"]) == (
        409,
        "/problems/job-failed",
        "fatal",
    )


def test_delete_cancels_and_says_so_again_and_refuses_what_has_ended_otherwise(http: httpx.Client, sql: Sql) -> None:
    job = submitted(http, queue=key())
    first = http.delete(f"/jobs/{job['jobId']}")
    assert (first.status_code, first.json()["status"]) == (200, "CANCELLED")
    assert http.delete(f"/jobs/{job['jobId']}").content == first.content
    done = submitted(http, queue=key())
    run(sql, done["jobId"], "success")
    late = http.delete(f"/jobs/{done['jobId']}")
    assert (late.status_code, late.json()["type"]) == (409, "/problems/already-finished")


def test_updated_at_moves_with_what_a_client_sees(http: httpx.Client, sql: Sql) -> None:
    job = submitted(http, queue=key())
    run(sql, job["jobId"], "running")
    path = f"/jobs/{job['jobId']}"
    seen = [http.get(path).json()]
    renewal = "select heartbeat('secret-worker', array[%s::uuid], array[1], null, %s::real[], %s::text[])"
    for progress, note in (("{0.6}", "{half}"), ("{0.6}", "{more}")):
        sql.execute(renewal, [job["jobId"], progress, note])
        seen.append(http.get(path).json())
    moved = [one["updatedAt"] for one in seen]
    assert moved == sorted(set(moved)), "each report of progress is later than the one before"
    sql.execute(renewal, [job["jobId"], None, None])
    sql.execute(renewal, [job["jobId"], "{0.6}", "{more}"])
    assert http.get(path).json() == seen[-1], "a renewal alone changes nothing that a client sees"
