"""Laws of /ops, against a real server: what operators see and do."""

import base64
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from psycopg.types.json import Jsonb

from tests.http.ops_site import ERROR, UNKNOWN, Site, ids, problem

# Jobs


def test_jobs_are_listed_in_pages_that_miss_nothing(site: Site, reader: httpx.Client) -> None:
    jobs = [site.enqueue() for _ in range(5)]
    found: list[str] = []
    cursor = None
    for _ in range(5):
        answer = reader.get("/ops/jobs", params={"limit": 2} | ({"cursor": cursor} if cursor else {}))
        found += ids(answer)
        cursor = answer.json()["cursor"]
        if cursor is None:
            break
    assert found == jobs[::-1]


def test_each_filter_of_the_contract_works(site: Site, reader: httpx.Client) -> None:
    dead = site.die(queue="mail", tags=["red"], exclusive_key="x")
    queued = site.enqueue("l")
    began = site.one("select created_at from jobs where id = %s", queued).isoformat()
    for parameters, expected in (
        ({"state": "dead"}, [dead]),
        ({"state": ["dead", "queued"]}, [queued, dead]),
        ({"kind": "l"}, [queued]),
        ({"queue": "mail"}, [dead]),
        ({"tag": "red"}, [dead]),
        ({"exclusiveKey": "x"}, [dead]),
        ({"errorClass": "ValueError"}, [dead]),
        ({"errorClass": "OSError"}, []),
        ({"createdAfter": began}, [queued]),
        ({"createdBefore": began}, [dead]),
        ({"kind": "l", "queue": "mail"}, []),
    ):
        assert ids(reader.get("/ops/jobs", params=parameters)) == expected, parameters


@pytest.mark.parametrize(
    "query",
    [
        "state=asleep", "colour=red", "limit=0", "limit=1001", "limit=x", "createdAfter=soon", "kind=", "kind=%00",
        "tag=%00", f"kind={'x' * 201}", "cursor=" + "W1" * 8000,
    ],
)  # fmt: skip
def test_a_query_that_makes_no_sense_names_what_is_wrong(reader: httpx.Client, query: str) -> None:
    assert problem(reader.get(f"/ops/jobs?{query}"), 422, "invalid-request")["errors"]


@pytest.mark.parametrize("place", ["x", "", "[]", '["x"]', '["ids", "x"]', "null", '["ids", null]', "[" * 5000, "5"])
def test_a_cursor_that_is_not_ours_leads_nowhere(reader: httpx.Client, operator: httpx.Client, place: str) -> None:
    for cursor in {place, base64.urlsafe_b64encode(place.encode()).decode()}:
        problem(reader.get("/ops/jobs", params={"cursor": cursor}), 404, "not-found")
        body = {"filter": {"kind": "k"}, "dryRun": True, "cursor": cursor}
        problem(operator.post("/ops/jobs/cancel", json=body), 404, "not-found")


def test_a_list_shows_nothing_of_what_jobs_carry(site: Site, operator: httpx.Client) -> None:
    site.die(payload={"a": "secret payload"}, idempotency_key="secret intent")
    answer = operator.get("/ops/jobs")
    assert len(ids(answer)) == 1
    assert "secret" not in answer.text


def test_what_a_job_carries_is_shown_to_those_who_may_operate_only(
    site: Site, reader: httpx.Client, operator: httpx.Client
) -> None:
    job = site.die(payload={"a": "secret payload", "n": 12345678901234567890123}, idempotency_key="secret intent")
    shown = operator.get(f"/ops/jobs/{job}")
    body = shown.json()
    assert (body["payload"]["a"], body["idempotencyKey"], body["result"]) == ("secret payload", "secret intent", None)
    assert '"n": 12345678901234567890123' in shown.text
    assert [a["errorTraceback"] for a in body["attempts"]] == ["secret traceback"]
    redacted = reader.get(f"/ops/jobs/{job}")
    assert "secret" not in redacted.text
    assert [(a["outcome"], a["errorClass"]) for a in redacted.json()["attempts"]] == [("failed", "ValueError")]
    assert (redacted.json()["state"], redacted.json()["status"]) == ("dead", "FAILED")


def test_the_result_of_a_job_is_shown_as_the_database_has_it(site: Site, operator: httpx.Client) -> None:
    job = site.enqueue()
    site.claim(job)
    site.sql.execute("select complete('w', array[%s]::uuid[], '{1}', array['{\"a\": 1.50}']::jsonb[])", [job])
    assert '"result":{"a": 1.50}' in operator.get(f"/ops/jobs/{job}").text


def test_explain_says_why_a_job_is_not_running(site: Site, reader: httpx.Client) -> None:
    job = site.enqueue(queue="mail")
    site.sql.execute("select pause('mail', 'down')")
    found = reader.get(f"/ops/jobs/{job}/explain").json()
    assert found["jobId"] == job
    assert [reason["reason"] for reason in found["reasons"]] == ["paused", "no_worker_for_kind"]
    assert found["reasons"][0]["detail"].endswith(": down")


def test_explain_names_the_job_in_the_way_only_to_those_who_may_see_it(site: Site, reader: httpx.Client) -> None:
    holder, waiting = (site.enqueue(exclusive_key="x", queue=queue) for queue in ("other", "mail"))
    site.claim(holder)
    reason = reader.get(f"/ops/jobs/{waiting}/explain").json()["reasons"][0]
    assert (reason["reason"], reason["blocker"]) == ("exclusive_key", holder)
    answer = site.client("read", queues=["mail"]).get(f"/ops/jobs/{waiting}/explain")
    assert answer.json()["reasons"][0]["reason"] == "exclusive_key"
    assert holder not in answer.text


def test_what_a_task_said_is_shown(site: Site, operator: httpx.Client, reader: httpx.Client) -> None:
    job = site.enqueue()
    site.claim(job)
    site.sql.execute(
        "select add_logs('w', array[%s]::uuid[], '{1}', array[null]::uuid[], %s)",
        [job, [Jsonb([["2031-05-17T12:00:00Z", "INFO", "hello"]])]],
    )
    assert operator.get(f"/ops/jobs/{job}/logs").json()["attempts"] == [
        {"attempt": 1, "lines": [{"at": "2031-05-17T12:00:00Z", "level": "INFO", "text": "hello"}]}
    ]
    problem(reader.get(f"/ops/jobs/{job}/logs"), 403, "forbidden")


def test_retry_cancel_and_run_change_one_job(site: Site, operator: httpx.Client) -> None:
    job = site.die()
    assert operator.post(f"/ops/jobs/{job}/retry").json()["state"] == "queued"
    problem(operator.post(f"/ops/jobs/{job}/retry"), 409, "illegal-transition")
    assert operator.post(f"/ops/jobs/{job}/cancel").json()["status"] == "CANCELLED"
    assert operator.post(f"/ops/jobs/{job}/cancel").json()["reasonDetail"] == "by ann"
    later = site.enqueue(run_after="1 hour")
    assert operator.post(f"/ops/jobs/{later}/run").json()["state"] == "queued"
    problem(operator.post(f"/ops/jobs/{later}/run"), 409, "illegal-transition")
    problem(operator.post(f"/ops/jobs/{site.die()}/cancel"), 409, "already-finished")


def test_many_jobs_are_retried_after_a_dry_run(site: Site, operator: httpx.Client) -> None:
    dead = [site.die() for _ in range(3)]
    other = site.die(error=ERROR | {"class": "OSError"})
    body = {"filter": {"errorClass": "ValueError"}, "dryRun": True, "limit": 2}
    cut = operator.post("/ops/jobs/retry", json=body).json()
    assert cut == {"matched": 2, "changed": 0, "capped": True, "cursor": cut["cursor"]}
    whole = {"capped": False, "cursor": None}
    more = operator.post("/ops/jobs/retry", json=body | {"cursor": cut["cursor"]})
    assert more.json() == {"matched": 1, "changed": 0, **whole}
    body |= {"dryRun": False, "limit": 10}
    assert operator.post("/ops/jobs/retry", json=body).json() == {"matched": 3, "changed": 3, **whole}
    assert {site.one("select state from jobs where id = %s", job) for job in dead} == {"queued"}
    assert site.one("select state from jobs where id = %s", other) == "dead"


def test_many_jobs_are_cancelled(site: Site, operator: httpx.Client) -> None:
    site.enqueue(queue="mail"), site.enqueue()
    body = {"filter": {"queue": "mail", "state": "queued"}, "dryRun": False, "reason": "sent twice"}
    found = {"matched": 1, "changed": 1, "capped": False, "cursor": None}
    assert operator.post("/ops/jobs/cancel", json=body).json() == found
    assert site.one("select reason_detail from jobs where state = 'dead'") == "sent twice"


@pytest.mark.parametrize("route", ["/ops/jobs/retry", "/ops/jobs/cancel"])
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"dryRun": True}, "filter"),
        ({"filter": {}}, "dryRun"),
        ({"filter": {"colour": "red"}, "dryRun": True}, "filter.colour"),
        ({"filter": {"queues": ["a"]}, "dryRun": True}, "filter.queues"),
        ({"filter": {"state": "success"}, "dryRun": True}, "filter.state"),
        ({"filter": {"kind": "a\0"}, "dryRun": True}, ""),
        ({"filter": {}, "dryRun": True, "limit": 0}, "limit"),
        ({"filter": {}, "dryRun": True, "limit": 1001}, "limit"),
        ({"filter": {}, "dryRun": "yes"}, "dryRun"),
    ],
)
def test_a_bulk_request_that_makes_no_sense_changes_nothing(
    operator: httpx.Client, route: str, body: dict[str, Any], field: str
) -> None:
    errors = problem(operator.post(route, json=body), 422, "invalid-request")["errors"]
    assert errors[0]["field"].startswith(field)


# Queues, limits, workers, errors, stats


def test_a_queue_is_paused_with_a_reason_and_resumed(site: Site, operator: httpx.Client) -> None:
    site.enqueue(queue="a/b c")
    assert operator.post("/ops/queues/a%2Fb%20c/pause", json={"reason": "down"}).json() == {
        "queue": "a/b c",
        "paused": True,
    }
    (queue,) = operator.get("/ops/queues").json()["queues"]
    assert (queue["queue"], queue["ready"], queue["pausedBy"], queue["pausedReason"]) == ("a/b c", 1, "ann", "down")
    assert site.sql.execute("select id from claim('w')").fetchall() == []
    assert operator.post("/ops/queues/a%2Fb%20c/resume").json() == {"queue": "a/b c", "paused": False}
    assert operator.get("/ops/queues").json()["queues"][0]["pausedAt"] is None


def test_limits_are_set_shown_and_taken_away(site: Site, operator: httpx.Client) -> None:
    for path, expected in (
        ("global", {"scope": "global", "name": "", "maxRunning": 3}),
        ("queue/mail", {"scope": "queue", "name": "mail", "maxRunning": 3}),
        ("kind/SEND%2FIT", {"scope": "kind", "name": "SEND/IT", "maxRunning": 3}),
        ("key/tenant-1%2F", {"scope": "key", "name": "tenant-1/", "maxRunning": 3}),
    ):
        assert operator.put(f"/ops/limits/{path}", json={"maxRunning": 3}).json() == expected
    found = operator.get("/ops/limits").json()["limits"]
    assert [(limit["scope"], limit["running"]) for limit in found] == [
        ("global", 0), ("key", 0), ("kind", 0), ("queue", 0)
    ]  # fmt: skip
    assert operator.delete("/ops/limits/queue/mail").status_code == 204
    problem(operator.delete("/ops/limits/queue/mail"), 404, "not-found")
    assert operator.delete("/ops/limits/global").status_code == 204
    for path, body in (("queue/mail", {"maxRunning": -1}), ("colour/red", {"maxRunning": 1}), ("global", {})):
        problem(operator.put(f"/ops/limits/{path}", json=body), 422, "invalid-request")


def test_workers_errors_and_figures(site: Site, reader: httpx.Client, operator: httpx.Client) -> None:
    site.sql.execute("select start_worker('w', host => 'h', pid => 7, kinds => '{k}', slots => 4)")
    job = site.die()
    (worker,) = reader.get("/ops/workers").json()["workers"]
    assert (worker["id"], worker["host"], worker["slots"], worker["live"], worker["queues"]) == (
        "w",
        "h",
        4,
        True,
        None,
    )
    (group,) = operator.get("/ops/errors").json()["errors"]
    assert (group["jobType"], group["errorClass"], group["jobs"], group["lastJob"]) == ("k", "ValueError", 1, job)
    assert group["lastMessage"] == "secret message"
    assert "secret" not in reader.get("/ops/errors").text
    figures = reader.get("/ops/stats").json()["figures"]
    assert (figures["dead"], figures["slots"]) == ({"value": 1, "capped": False}, {"value": 4, "capped": False})


@pytest.mark.parametrize(
    "call", [lambda c, job: c.get(f"/ops/jobs/{job}"), lambda c, job: c.post(f"/ops/jobs/{job}/retry")]
)
@pytest.mark.parametrize("job", [UNKNOWN, "x", "019a5f2e7c117abc8def0123456789ab", "%00", "..%2fx"])
def test_an_id_of_no_job_is_404(
    operator: httpx.Client, call: Callable[[httpx.Client, str], httpx.Response], job: str
) -> None:
    problem(call(operator, job), 404, "not-found")
