"""Laws of /ops/statistics, /ops/rates, /ops/system and /ops/canaries."""

from typing import Any

import httpx
import psycopg
import pytest
from psycopg.types.json import Jsonb

from leasehold._histogram import BOUNDS, CLASSES
from tests.http.ops_site import UNKNOWN, Site, problem


@pytest.fixture(autouse=True)
def nothing_tallied(site: Site) -> None:
    site.sql.execute("truncate statistics, flow, canaries, canary_jobs")


def tally(site: Site, **queues: tuple[int, int]) -> None:
    """What a worker did two minutes ago, in one tally: of each queue how many succeeded, and their class."""
    rows = []
    for queue, (success, place) in queues.items():
        classes = [0] * CLASSES
        classes[place] = success
        rows.append({"queue": queue, "kind": "k", "success": success, "failed": 1, "waits": classes, "runs": classes})
    site.sql.execute("select statistics_add('w', 1, 120, %s)", [Jsonb(rows)])


def figures(answer: httpx.Response, name: str = "success") -> int:
    assert answer.status_code == 200, answer.text
    return sum(bucket[name] for bucket in answer.json()["buckets"])


def test_what_was_tallied_is_given_in_equal_steps_without_gaps(site: Site, reader: httpx.Client) -> None:
    tally(site, mail=(30, 5), reports=(70, 9))
    body = reader.get("/ops/statistics", params={"seconds": 3600, "step": 60}).json()
    assert body["step"] == 60
    assert body["bounds"] == list(BOUNDS)
    assert 58 <= len(body["buckets"]) <= 61
    (full,) = [bucket for bucket in body["buckets"] if bucket["success"]]
    assert (full["success"], full["failed"]) == (100, 2)
    assert BOUNDS[8] < full["run"]["p99"] <= BOUNDS[9]
    assert BOUNDS[4] < full["run"]["p50"] <= BOUNDS[9]
    empty = next(bucket for bucket in body["buckets"] if not bucket["success"])
    assert empty["wait"] == {"p50": None, "p95": None, "p99": None}
    assert body["flow"] == []


def test_one_queue_or_type_can_be_asked_for(site: Site, reader: httpx.Client) -> None:
    tally(site, mail=(30, 5), reports=(70, 5))
    assert figures(reader.get("/ops/statistics", params={"queue": "mail"})) == 30
    assert figures(reader.get("/ops/statistics", params={"jobType": "k"})) == 100
    assert figures(reader.get("/ops/statistics", params={"jobType": "k", "queue": "reports"})) == 70
    assert figures(reader.get("/ops/statistics", params={"queue": "unknown"})) == 0


@pytest.mark.parametrize(("seconds", "step"), [(60, 10), (3600, 30), (86400, 1800), (14 * 86400, 14400)])
def test_without_a_step_one_is_chosen_that_gives_a_picture(reader: httpx.Client, seconds: int, step: int) -> None:
    body = reader.get("/ops/statistics", params={"seconds": seconds}).json()
    assert body["step"] == step


def test_a_step_that_would_give_too_many_is_made_longer(reader: httpx.Client) -> None:
    body = reader.get("/ops/statistics", params={"seconds": 86400, "step": 10}).json()
    assert body["step"] == 90
    assert len(body["buckets"]) <= 1000


@pytest.mark.parametrize("params", [{"seconds": 1}, {"step": 15}, {"step": 5}, {"queue": ""}, {"seconds": "x"}])
def test_what_makes_no_sense_is_refused(reader: httpx.Client, params: dict[str, Any]) -> None:
    problem(reader.get("/ops/statistics", params=params), 422, "invalid-request")


def test_the_flow_is_there_for_everything_and_for_nothing_less(site: Site, reader: httpx.Client) -> None:
    site.enqueue()
    site.sql.execute("select upkeep()")
    (sample,) = reader.get("/ops/statistics").json()["flow"]
    assert (sample["queued"], sample["running"], sample["finished"]) == (1, 0, 0)
    assert reader.get("/ops/statistics", params={"queue": "default"}).json()["flow"] is None


def test_a_token_for_some_queues_sees_only_these(site: Site) -> None:
    tally(site, mail=(30, 5), reports=(70, 5))
    site.enqueue(queue="mail")
    site.enqueue(queue="reports")
    some = site.client("read", queues=["mail"])
    assert figures(some.get("/ops/statistics")) == 30
    assert [rate["queue"] for rate in some.get("/ops/rates").json()["rates"]] == ["mail"]
    problem(some.get("/ops/statistics", params={"queue": "reports"}), 404, "not-found")
    problem(some.get("/ops/system"), 403, "forbidden")
    problem(site.client("read", kinds=["x"]).get("/ops/statistics", params={"jobType": "k"}), 404, "not-found")


def test_rates_come_with_a_verdict_in_words(site: Site, reader: httpx.Client) -> None:
    site.enqueue(queue="mail")
    site.sql.execute("select pause('mail')")
    site.enqueue(queue="reports")
    rates = {rate["queue"]: rate for rate in reader.get("/ops/rates").json()["rates"]}
    assert (rates["mail"]["outlook"], rates["mail"]["words"]) == ("paused", "paused, 1 waiting")
    assert rates["reports"]["words"] == "no worker serves it"
    assert rates["reports"]["ready"] == 1


def test_what_a_session_runs_is_for_operators(site: Site, reader: httpx.Client, operator: httpx.Client) -> None:
    name = site.sql.execute("select current_database()").fetchone()[0]  # type: ignore[index]
    dsn = f"{site.sql.info.dsn} dbname={name} application_name=forgotten"
    with psycopg.connect(dsn, password=site.sql.info.password) as idle:
        idle.execute("set transaction isolation level repeatable read")
        idle.execute("select 'a query'")
        seen = {}
        for client in (reader, operator):
            body = client.get("/ops/system").json()
            (seen[client],) = [holder for holder in body["horizon"] if holder["application"] == "forgotten"]
    assert seen[reader]["query"] is None
    assert seen[operator]["query"] == "select 'a query'"
    assert seen[operator]["pid"] == seen[reader]["pid"]
    assert {"jobs", "attempts"} <= {table["name"] for table in body["tables"]}


def test_a_canary_is_started_listed_and_stopped(site: Site, reader: httpx.Client, operator: httpx.Client) -> None:
    jobs = [site.die() for _ in range(12)]
    group = {"jobType": "k", "errorClass": "ValueError"}
    answer = operator.post("/ops/canaries", json=group)
    assert answer.status_code == 202, answer.text
    started = answer.json()
    assert (started["state"], started["stage"], started["total"], started["retried"]) == ("running", 1, 12, 10)
    assert started["startedBy"] == "ann"
    assert operator.post("/ops/canaries", json=group).json()["id"] == started["id"], "one for the group"
    (listed,) = reader.get("/ops/canaries").json()["canaries"]
    assert listed["id"] == started["id"]
    stopped = operator.post(f"/ops/canaries/{started['id']}/stop").json()
    assert (stopped["state"], stopped["reason"]) == ("stopped", "stopped by ann")
    assert operator.post(f"/ops/canaries/{started['id']}/stop").json() == stopped, "it changes nothing"
    assert site.one("select count(*) from jobs where state = 'dead' and id = any(%s::uuid[])", jobs) == 2


def test_a_group_with_nothing_to_retry_is_not_found(operator: httpx.Client) -> None:
    answer = operator.post("/ops/canaries", json={"jobType": "k", "errorClass": "NoSuchError"})
    assert problem(answer, 404, "not-found")["detail"] == "no dead job of that type has that class of error"
    problem(operator.post(f"/ops/canaries/{UNKNOWN}/stop"), 404, "not-found")


def test_a_token_for_some_queues_retries_only_these(site: Site) -> None:
    site.die(queue="mail")
    site.die(queue="reports")
    some = site.client("operate", queues=["mail"])
    group = {"jobType": "k", "errorClass": "ValueError"}
    started = some.post("/ops/canaries", json=group).json()
    assert (started["total"], started["queues"]) == (1, ["mail"])
    other = site.client("operate", queues=["reports"])
    assert other.get("/ops/canaries").json()["canaries"] == []
    problem(other.post(f"/ops/canaries/{started['id']}/stop"), 404, "not-found")
    problem(site.client("operate", kinds=["x"]).post("/ops/canaries", json=group), 404, "not-found")
