"""?wait=: the answer comes when the job has finished, and waiting costs the database next to nothing."""

import time
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import httpx
import pytest

from faults.waiting import stays, until
from tests.http.conftest import Sql, key, run, submitted
from tests.http.running import Served, serving


def until_waiting(http: httpx.Client, requests: int) -> None:
    until(lambda: f"leasehold_http_watchers {requests}.0" in http.get("/metrics").text)


def test_the_answer_comes_as_soon_as_the_job_has_finished(http: httpx.Client, sql: Sql) -> None:
    job = submitted(http, queue=key())
    with ThreadPoolExecutor(2) as pool:
        status = pool.submit(http.get, f"/jobs/{job['jobId']}?wait=60")
        result = pool.submit(http.get, f"/jobs/{job['jobId']}/result?wait=60")
        until_waiting(http, 2)
        stays(lambda: not status.done() and not result.done(), "they wait", seconds=0.5)
        begin = time.monotonic()
        run(sql, job["jobId"], "success")
        assert status.result().json()["status"] == "COMPLETED"
        assert result.result().json()["result"] == {"sent": 1.10}
        assert time.monotonic() - begin < 30


def test_a_wait_that_is_over_shows_the_job_as_it_is(http: httpx.Client) -> None:
    job = submitted(http)
    begin = time.monotonic()
    answer = http.get(f"/jobs/{job['jobId']}?wait=1")
    assert (answer.status_code, answer.json()) == (200, job)
    assert time.monotonic() - begin >= 0.9
    late = http.get(f"/jobs/{job['jobId']}/result?wait=1")
    assert (late.status_code, late.json()["type"]) == (409, "/problems/not-finished")


def test_a_job_that_has_finished_or_is_unknown_is_answered_at_once(http: httpx.Client, sql: Sql) -> None:
    job = submitted(http, queue=key())
    run(sql, job["jobId"], "dead")
    begin = time.monotonic()
    assert http.get(f"/jobs/{job['jobId']}?wait=60").json()["status"] == "FAILED"
    assert http.get(f"/jobs/{uuid4()}?wait=60").status_code == 404
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize("wait", ["-1", "61", "soon", "1.5", "", "1e9"])
def test_a_wait_that_is_none_is_refused(http: httpx.Client, wait: str) -> None:
    answer = http.get(f"/jobs/{uuid4()}", params={"wait": wait})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "wait")


def test_many_who_wait_share_one_connection_and_a_few_statements(dsn: str) -> None:
    """Sixty requests wait for sixty jobs at once, with a few connections for all of them."""
    with (
        serving(dsn) as served,
        httpx.Client(base_url=served.url, timeout=90, limits=httpx.Limits(max_connections=80)) as http,
    ):
        jobs = [submitted(http)["jobId"] for _ in range(60)]
        with ThreadPoolExecutor(60) as pool:
            waiting = [pool.submit(http.get, f"/jobs/{job}?wait=60") for job in jobs]
            until_waiting(http, 60)
            connections = backends(served)
            for job in jobs:
                assert http.delete(f"/jobs/{job}").status_code == 200
            answers = [one.result() for one in waiting]
        assert {answer.status_code for answer in answers} == {200}
        assert connections <= 8
        metrics = http.get("/metrics").text
        assert 'route="/jobs/{jobId}",status="200"} 60.0' in metrics


def backends(served: Served) -> int:
    """How many connections the server has."""
    import psycopg  # noqa: PLC0415

    with psycopg.connect(served.dsn) as connection:
        found = connection.execute(
            "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        ).fetchone()
    return int(found[0]) if found else 0


def test_a_server_that_is_stopped_answers_requests_that_wait(dsn: str) -> None:
    with serving(dsn) as served, httpx.Client(base_url=served.url, timeout=90) as http:
        job = submitted(http)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(http.get, f"/jobs/{job['jobId']}?wait=60")
            until_waiting(http, 1)
            begin = time.monotonic()
            served.process.terminate()
            assert waiting.result().json() == job
        assert served.process.wait(60) == 0
        assert time.monotonic() - begin < 30
