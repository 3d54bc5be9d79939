"""Many jobs in one request; problems that can be looked up; what the process reports of itself."""

from typing import Any
from uuid import uuid4

import httpx
import pytest
from psycopg.conninfo import make_conninfo

from faults.waiting import until
from tests.http.conftest import Sql, connect, everything, intent, run, submitted
from tests.http.running import serving


def test_a_batch_is_recorded_in_order_and_its_retry_returns_the_same(http: httpx.Client, sql: Sql) -> None:
    jobs = [intent(jobType=f"k{n}") for n in range(20)]
    first = http.post("/jobs/batch", json={"jobs": jobs})
    assert first.status_code == 202
    assert [job["jobType"] for job in first.json()["jobs"]] == [f"k{n}" for n in range(20)]
    assert http.post("/jobs/batch", json={"jobs": jobs}).content == first.content
    states = sql.execute("select distinct state::text from jobs where kind ~ '^k[0-9]+$'").fetchall()
    assert states == [{"state": "queued"}]


@pytest.mark.parametrize(
    ("wrong", "status", "where"),
    [
        ({"payload": [1]}, 422, "jobs.1.payload"),
        ({"idempotencyKey": None}, 422, "jobs.1.idempotencyKey"),
        ({"idempotencyKey": "taken", "idempotency": "strict"}, 409, "jobs.1: "),
    ],
)
def test_a_batch_with_one_wrong_job_records_nothing_and_names_it(
    http: httpx.Client, sql: Sql, wrong: dict[str, Any], status: int, where: str
) -> None:
    http.post("/jobs", json=intent(idempotencyKey="taken", jobType="ANOTHER"))
    before = everything(sql)
    answer = http.post("/jobs/batch", json={"jobs": [intent(), intent() | wrong, intent()]})
    assert answer.status_code == status
    assert where in answer.text
    assert everything(sql) == before


@pytest.mark.parametrize(
    "body", [{"jobs": []}, {"jobs": [1]}, {}, {"jobs": {}}, {"jobs": [{}] * 1001}, {"jobs": [], "x": 1}, []]
)
def test_a_batch_that_is_none_is_refused(http: httpx.Client, body: Any) -> None:
    answer = http.post("/jobs/batch", json=body)
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-request")


def test_every_problem_type_can_be_looked_up(http: httpx.Client) -> None:
    problem = http.get("/jobs/nope").json()
    assert problem.keys() == {"type", "title", "status", "detail"}
    described = http.get(problem["type"])
    assert described.status_code == 200
    assert described.text.startswith("Not found (404)")
    assert http.get("/problems/nonsense").status_code == 404


def test_the_process_reports_that_it_lives_is_ready_and_what_it_did(http: httpx.Client) -> None:
    assert http.get("/healthz").json() == {"status": "ok"}
    assert http.get("/readyz").json() == {"status": "ok"}
    submitted(http)
    assert http.get("/ops/queues").status_code == 200
    counted = 'leasehold_http_requests_total{method="POST",route="/jobs",status="202"}'
    text = until(lambda: found if counted in (found := http.get("/metrics").text) else "", "the request is counted")
    assert "leasehold_http_submissions_total" in text
    assert 'leasehold_http_requests_total{method="GET",route="/ops/queues",status="200"} 1.0' in text
    assert 'leasehold_jobs{state="queued"}' in text


def test_a_login_with_the_role_of_an_api_server_is_enough(dsn: str) -> None:
    name = f"api_{uuid4().hex}"
    with connect(dsn) as sql:
        sql.execute(f"create role {name} login password 'x'")
        sql.execute(f"grant leasehold_api to {name}")
        try:
            with (
                serving(make_conninfo(dsn, user=name, password="x")) as served,
                httpx.Client(base_url=served.url) as http,
            ):
                job = submitted(http, queue="q")
                assert http.post("/jobs/batch", json={"jobs": [intent(), intent()]}).status_code == 202
                run(sql, job["jobId"], "success")
                assert http.get(f"/jobs/{job['jobId']}/result").json()["result"] == {"sent": 1.10}
                other = submitted(http)
                assert http.delete(f"/jobs/{other['jobId']}").json()["status"] == "CANCELLED"
                assert http.get("/readyz").status_code == 200
                assert "leasehold_jobs" in http.get("/metrics").text
        finally:
            sql.execute(f"drop owned by {name}")
            sql.execute(f"drop role {name}")
