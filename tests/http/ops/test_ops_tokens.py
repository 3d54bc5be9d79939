"""Laws of tokens under /ops, against a real server: who makes them, and what each keeps from its holder."""

import base64
import uuid
from typing import Any

import httpx
import pytest

from faults.waiting import until
from tests.http.ops_site import ROUTES, UNKNOWN, Site, ids, problem

# Tokens


def test_a_token_is_made_used_listed_and_revoked(site: Site) -> None:
    everything = site.client()
    answer = everything.post("/ops/tokens", json={"name": "ci", "scopes": ["read"], "queues": ["mail"], "rate": 50})
    assert answer.status_code == 201
    assert answer.headers["cache-control"] == "no-store"
    made = answer.json()
    mine = httpx.Client(base_url=site.url, headers={"authorization": f"Bearer {made['token']}"})
    with mine:
        assert mine.get("/ops/jobs").status_code == 200
        listed = everything.get("/ops/tokens")
        (token,) = [token for token in listed.json()["tokens"] if token["id"] == made["id"]]
        assert (token["name"], token["scopes"], token["queues"], token["live"]) == ("ci", ["read"], ["mail"], True)
        assert made["token"].split("_", 2)[2] not in listed.text
        assert everything.delete(f"/ops/tokens/{made['id']}").status_code == 204
        assert everything.delete(f"/ops/tokens/{made['id']}").status_code == 204
        until(lambda: mine.get("/ops/jobs").status_code == 401, "a revoked token is refused")
    for unknown in (UNKNOWN, "x"):
        problem(everything.delete(f"/ops/tokens/{unknown}"), 404, "not-found")


def test_no_token_makes_one_that_allows_more_than_itself(site: Site, operator: httpx.Client) -> None:
    before = site.one("select count(*) from tokens")
    problem(operator.post("/ops/tokens", json={"name": "x", "scopes": ["submit"]}), 403, "forbidden")
    assert operator.post("/ops/tokens", json={"name": "x", "scopes": ["operate"]}).status_code == 201
    restricted = site.client("operate", queues=["mail"])
    problem(restricted.post("/ops/tokens", json={"name": "x", "scopes": ["operate"]}), 403, "forbidden")
    problem(restricted.get("/ops/tokens"), 403, "forbidden")
    problem(restricted.delete(f"/ops/tokens/{UNKNOWN}"), 403, "forbidden")
    assert site.one("select count(*) from tokens") == before + 2


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "name"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["admin"]}, "scopes.0"),
        ({"queues": []}, "queues"),
        ({"rate": 0}, "rate"),
        ({"expiresAt": "soon"}, "expiresAt"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_token_that_makes_no_sense_is_not_made(operator: httpx.Client, changes: dict[str, Any], field: str) -> None:
    body = {"name": "x", "scopes": ["operate"]} | changes
    assert problem(operator.post("/ops/tokens", json=body), 422, "invalid-request")["errors"][0]["field"] == field


# What each token may


def test_every_route_is_in_the_matrix_below(site: Site, reader: httpx.Client) -> None:
    served = {
        (method.upper(), path)
        for path, operations in reader.get("/openapi.json").json()["paths"].items()
        for method in operations
        if path.startswith("/ops") and not path.startswith("/ops/schedules")
    }
    named = {
        f"canaries/{UNKNOWN}": "canaries/{canaryId}",
        "{job}": "{jobId}",
        UNKNOWN: "{tokenId}",
        "queues/mail": "queues/{queue}",
        "queue/mail": "{scope}/{name}",
    }
    tested = set()
    for method, path, _ in ROUTES:
        for text, name in named.items():
            path = path.replace(text, name)  # noqa: PLW2901
        tested.add((method, path))
    assert tested == served


@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
def test_every_route_asks_for_its_scope(site: Site, method: str, path: str, body: Any) -> None:
    path = path.replace("{job}", site.enqueue())
    looks = method == "GET" and not path.endswith(("/logs", "/tokens"))
    needed = {"read", "operate"} if looks else {"operate"}
    for scope in ("submit", "status", "read", "operate"):
        answer = site.client(scope).request(method, path, json=body)
        if scope in needed:
            assert answer.status_code not in (401, 403), f"{scope} may {method} {path}: {answer.text}"
            assert answer.status_code < 500
        else:
            problem(answer, 403, "forbidden")
    problem(httpx.request(method, site.url + path, json=body), 401, "unauthorized")


@pytest.mark.parametrize("restriction", [{"queues": ["mail"]}, {"kinds": ["k"]}, {"queues": ["mail"], "kinds": ["k"]}])
def test_a_restricted_token_sees_its_own_jobs_and_no_others(site: Site, restriction: dict[str, list[str]]) -> None:
    mine = site.die("k", queue="mail")
    others = [site.die("hidden-kind", queue="hidden-queue", exclusive_key="hidden-key")]
    if "queues" in restriction:
        others.append(site.die("k", queue="hidden-queue"))
    if "kinds" in restriction:
        others.append(site.die("hidden-kind", queue="mail"))
    for state in ("queued", "running"):
        job = site.enqueue("hidden-kind", queue="hidden-queue", exclusive_key=f"hidden-{state}")
        if state == "running":
            site.claim(job)
    site.sql.execute("select set_limit('queue', 'hidden-queue', 9), set_limit('kind', 'hidden-kind', 9)")
    site.sql.execute("select start_worker('hidden-worker', queues => '{hidden-queue}', kinds => '{hidden-kind}')")
    client = site.client("read", "operate", **restriction)
    for parameters in ({}, {"state": "dead"}, {"state": ["dead", "queued"]}):
        assert ids(client.get("/ops/jobs", params=parameters)) == [mine]
    for state in ("queued", "running", "created"):
        assert ids(client.get("/ops/jobs", params={"state": state})) == []
    for path in ("/ops/jobs", "/ops/queues", "/ops/limits", "/ops/workers", "/ops/errors"):
        assert "hidden" not in client.get(path).text, path
    assert client.get(f"/ops/jobs/{mine}").status_code == 200
    for job in others:
        for method, path in (
            ("GET", ""), ("GET", "/explain"), ("GET", "/logs"),
            ("POST", "/retry"), ("POST", "/cancel"), ("POST", "/run"),
        ):  # fmt: skip
            problem(client.request(method, f"/ops/jobs/{job}{path}"), 404, "not-found")
    problem(client.get("/ops/stats"), 403, "forbidden")


def test_a_restricted_token_changes_only_its_own(site: Site) -> None:
    mine, other = site.die(queue="mail"), site.die(queue="other")
    client = site.client("operate", queues=["mail"])
    body = {"filter": {}, "dryRun": False}
    assert client.post("/ops/jobs/retry", json=body).json()["changed"] == 1
    assert site.one("select state from jobs where id = %s", mine) == "queued"
    assert site.one("select state from jobs where id = %s", other) == "dead"
    waiting = site.enqueue(queue="other")
    assert client.post("/ops/jobs/cancel", json=body).json()["changed"] == 1
    assert site.one("select state from jobs where id = %s", waiting) == "queued"
    assert client.post("/ops/jobs/cancel", json=body | {"filter": {"queue": "other"}}).json()["changed"] == 0
    assert client.post("/ops/queues/mail/pause", json={}).status_code == 200
    problem(client.post("/ops/queues/other/pause", json={}), 404, "not-found")
    problem(client.post("/ops/queues/other/resume"), 404, "not-found")
    assert client.put("/ops/limits/queue/mail", json={"maxRunning": 1}).status_code == 200
    for path in ("global", "queue/other", "kind/k", "key/x"):
        problem(client.put(f"/ops/limits/{path}", json={"maxRunning": 1}), 404, "not-found")
        problem(client.delete(f"/ops/limits/{path}"), 404, "not-found")


def test_a_token_for_one_kind_does_not_stop_a_whole_queue(site: Site) -> None:
    client = site.client("operate", queues=["mail"], kinds=["k"])
    problem(client.post("/ops/queues/mail/pause", json={}), 403, "forbidden")
    problem(client.put("/ops/limits/queue/mail", json={"maxRunning": 1}), 403, "forbidden")
    problem(client.put("/ops/limits/kind/k", json={"maxRunning": 1}), 403, "forbidden")


def test_the_cursor_of_a_restricted_token_names_nothing_that_it_may_not_know(site: Site) -> None:
    for _ in range(3):
        site.enqueue(queue="mail")
        site.enqueue("hidden-kind", queue="hidden-queue", exclusive_key="hidden-key")
    client = site.client("read", queues=["mail"])
    answer = client.get("/ops/jobs", params={"state": "queued", "limit": 1})
    assert len(ids(answer)) == 1
    cursor = answer.json()["cursor"]
    assert base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).startswith(b'["ids"')
    forged = base64.urlsafe_b64encode(f'["queued", "", "", 0, "{uuid.UUID(int=0)}"]'.encode()).decode().rstrip("=")
    problem(client.get("/ops/jobs", params={"state": "queued", "cursor": forged}), 404, "not-found")
    unrestricted = site.client("read")
    assert unrestricted.get("/ops/jobs", params={"state": "queued", "cursor": forged}).status_code == 200
