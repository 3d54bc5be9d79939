"""The database stops, is killed, freezes: 503 within 2 s, normal within 5 s of its return, nothing half-made."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from faults.waiting import until
from leasehold.db.migrations.migrate import migrate
from leasehold.embedded import EmbeddedServer
from tests.db.proxy import Proxy
from tests.http.conftest import Sql, connect, intent
from tests.http.running import Served, serving
from tests.timing import bound

QUICK = 2.0
"""Seconds within which 503 comes on a quiet machine."""

BACK = 5.0


class Stage:
    """A database server that can be taken away, and an API server that cannot."""

    def __init__(self, server: EmbeddedServer, served: Served) -> None:
        self.server = server
        self.served = served
        self.http = httpx.Client(base_url=served.url, timeout=30)

    @property
    def postmaster(self) -> int:
        return int((self.server.data / "postmaster.pid").read_text().splitlines()[0])

    def family(self) -> list[int]:
        """Every process of the database server."""
        children = Path(f"/proc/{self.postmaster}/task/{self.postmaster}/children").read_text().split()
        return [self.postmaster, *map(int, children)]

    def stop(self, how: signal.Signals) -> None:
        pid = self.postmaster
        os.kill(pid, how)
        until(lambda: not Path(f"/proc/{pid}").exists(), "the database has ended")

    def away(self) -> None:
        """Every kind of request gets an error that says so, in time."""
        job_id = "019a5f2e-7c11-7abc-8def-0123456789ab"
        requests: list[tuple[str, str, Any]] = [
            ("POST", "/jobs", intent()),
            ("POST", "/jobs/batch", {"jobs": [intent(), intent()]}),
            ("GET", f"/jobs/{job_id}", None),
            ("GET", f"/jobs/{job_id}/result?wait=20", None),
            ("DELETE", f"/jobs/{job_id}", None),
        ]
        with ThreadPoolExecutor(len(requests)) as pool:
            answers = list(pool.map(lambda request: self.timed(*request), requests))
        answers.append(self.timed("GET", "/readyz", None))  # later: a good answer is good for half a second
        for answer, seconds in answers:
            assert answer.status_code == 503, answer.text
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["type"] in {"/problems/database-unavailable", "/problems/outcome-unknown"}
            assert seconds < bound(QUICK)
        assert self.http.get("/healthz").status_code == 200

    def timed(self, method: str, path: str, body: Any) -> tuple[httpx.Response, float]:
        begin = time.monotonic()
        return self.http.request(method, path, json=body), time.monotonic() - begin

    def back(self) -> None:
        """It works again, in time."""
        begin = time.monotonic()
        while self.http.post("/jobs", json=intent()).status_code != 202:
            assert time.monotonic() - begin < bound(BACK)
        assert time.monotonic() - begin < bound(BACK)
        assert self.http.get("/readyz").status_code == 200


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with EmbeddedServer(tmp_path / "home", settings={"max_connections": 30}) as server:
        server.ensure_database("away")
        migrate(server.dsn("away"))
        with serving(server.dsn("away"), LEASEHOLD_API_DATABASE_SECONDS="1.5") as served:
            made = Stage(server, served)
            assert made.http.post("/jobs", json=intent()).status_code == 202
            try:
                yield made
            finally:
                made.http.close()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["stopped", "killed"])
def test_a_database_that_is_gone_is_503_at_once_and_normal_soon_after_its_return(
    stage: Stage, how: signal.Signals
) -> None:
    stage.stop(how)
    stage.away()
    stage.away()
    stage.server.start()
    stage.back()
    assert unfinished(stage) == []


def test_a_database_that_accepts_and_does_not_answer_is_503_as_well(stage: Stage) -> None:
    frozen = stage.family()
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        stage.away()
        stage.away()
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    stage.back()


def test_a_change_whose_answer_is_lost_is_of_unknown_outcome_and_one_that_was_not_sent_is_not(dsn: str) -> None:
    proxy = Proxy(dsn)
    try:
        with (
            connect(dsn) as sql,
            serving(proxy.dsn, LEASEHOLD_API_DATABASE_SECONDS="1.5") as served,
            httpx.Client(base_url=served.url, timeout=30) as http,
        ):
            job_id = http.post("/jobs", json=intent()).json()["jobId"]
            sql.execute("select cancel(%s)", [job_id])
            proxy.lose_answers(1, to="retry_v1")
            answer = http.post(f"/ops/jobs/{job_id}/retry")
            assert (answer.status_code, answer.json()["type"]) == (503, "/problems/outcome-unknown")
            assert sql.execute("select state from jobs where id = %s", [job_id]).fetchone() == {"state": "queued"}
            proxy.freeze_at("pause_v1")
            answer = http.post("/ops/queues/default/pause", json={})
            assert (answer.status_code, answer.json()["type"]) == (503, "/problems/outcome-unknown")
            proxy.go_away()
            for method, path in (("GET", f"/jobs/{job_id}"), ("POST", f"/ops/jobs/{job_id}/retry")):
                answer = http.request(method, path)
                assert (answer.status_code, answer.json()["type"]) == (503, "/problems/database-unavailable")
    finally:
        proxy.close()


def test_clients_that_repeat_unanswered_requests_end_with_one_job_for_each_key(stage: Stage) -> None:
    """Submissions go on while the database is killed and comes back; each is repeated until it is answered."""
    bodies = [intent() for _ in range(120)]
    answers: dict[str, set[str]] = {body["idempotencyKey"]: set() for body in bodies}

    def accepted(body: dict[str, Any]) -> str:
        answer = stage.http.post("/jobs", json=body)
        if answer.status_code == 202:
            return str(answer.json()["jobId"])
        assert answer.status_code == 503, answer.text
        if answer.json()["type"] == "/problems/outcome-unknown":
            assert answer.json()["idempotencyKey"] == body["idempotencyKey"]
        return ""

    def insist(body: dict[str, Any]) -> None:
        answers[body["idempotencyKey"]].add(until(lambda: accepted(body), "the job is accepted", pause=0.05))

    with ThreadPoolExecutor(12) as pool:
        work = [pool.submit(insist, body) for body in bodies]
        stage.stop(signal.SIGKILL)
        stage.server.start()
        for one in work:
            one.result()
    with open_again(stage) as sql:
        rows = sql.execute("select idempotency_key as key, id::text as id, state::text from jobs").fetchall()
    found = {row["key"]: row["id"] for row in rows}
    assert {unique: {found[unique]} for unique in answers} == answers
    assert {row["state"] for row in rows if row["key"] in answers} == {"queued"}


def unfinished(stage: Stage) -> list[Any]:
    """Jobs that were recorded, and whose clients got the answer that they are accepted, but are not."""
    with open_again(stage) as sql:
        return sql.execute("select * from jobs where not accepted").fetchall()


def open_again(stage: Stage) -> Sql:
    def opened() -> Sql | None:
        with suppress(psycopg.OperationalError):
            return connect(stage.served.dsn)
        return None

    return until(opened, "the database takes connections")
