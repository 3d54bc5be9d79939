"""What a submitting client needs shows nothing else; a token's jobs and keys are its namespace's own."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest

from faults.waiting import until
from leasehold.tokens import make_token, parse_token
from tests.http.conftest import Sql, connect, intent, key, run
from tests.http.running import Served, serving, token_for


@pytest.fixture(scope="module")
def served(home_dsn: str) -> Iterator[Served]:
    token_for(home_dsn, "read")
    with serving(home_dsn) as running:
        yield running


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def id_of(token: str) -> UUID:
    parsed = parse_token(token)
    assert parsed is not None
    return parsed.id


def submit(http: httpx.Client, token: str, **fields: Any) -> dict[str, Any]:
    answer = http.post("/jobs", json=intent(**fields), headers=bearer(token))
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json()
    return found


# -- one's own jobs


def test_a_client_sees_and_cancels_its_own_jobs_and_no_others(http: httpx.Client, home_dsn: str, sql: Sql) -> None:
    mine = token_for(home_dsn, "submit", "status", namespace="shop")
    theirs = token_for(home_dsn, "submit", "status", namespace="bank")
    job, other = submit(http, mine), submit(http, theirs)
    enqueued = sql.execute("select enqueue('SEND_EMAIL')::text as id").fetchone()
    assert enqueued is not None
    for tail in ("", "?wait=0", "/result"):
        assert http.get(f"/jobs/{job['jobId']}{tail}", headers=bearer(mine)).status_code in {200, 409}
    for hidden in (other["jobId"], enqueued["id"]):
        nothing = http.get(f"/jobs/{uuid4()}", headers=bearer(mine))
        for method, tail in (("GET", ""), ("GET", "/result"), ("GET", "/events"), ("DELETE", "")):
            answer = http.request(method, f"/jobs/{hidden}{tail}", headers=bearer(mine))
            assert (answer.status_code, answer.json()) == (404, nothing.json()), f"{method} {tail}"
    assert http.delete(f"/jobs/{job['jobId']}", headers=bearer(mine)).json()["status"] == "CANCELLED"
    left = sql.execute("select state::text from jobs where id = any(%s)", [[other["jobId"], enqueued["id"]]]).fetchall()
    assert left == [{"state": "queued"}] * 2


def test_a_new_token_of_the_same_namespace_goes_on_where_the_old_one_ended(http: httpx.Client, home_dsn: str) -> None:
    old = token_for(home_dsn, "submit", "status", namespace="rotated", queues=["default"])
    used = key()
    job = submit(http, old, idempotencyKey=used)
    new = token_for(home_dsn, "submit", "status", namespace="rotated", queues=["default"])
    assert submit(http, new, idempotencyKey=used)["jobId"] == job["jobId"]
    assert http.get(f"/jobs/{job['jobId']}", headers=bearer(new)).json()["jobId"] == job["jobId"]


def test_looking_around_needs_another_scope(http: httpx.Client, home_dsn: str, sql: Sql) -> None:
    client = token_for(home_dsn, "submit", "status")
    job = submit(http, client, queue=key())
    run(sql, job["jobId"], "running")
    for path in ("/ops/jobs", f"/ops/jobs/{job['jobId']}", "/ops/workers", "/ops/system", "/ops/queues", "/metrics"):
        answer = http.get(path, headers=bearer(client))
        assert answer.status_code == 403, path
    shown = http.get(f"/jobs/{job['jobId']}", headers=bearer(client)).text
    for word in ("secret-worker", "attempt", "retry", "lease", "host", "origin", "payload"):
        assert word not in shown
    reader = token_for(home_dsn, "read")
    assert http.get(f"/jobs/{job['jobId']}", headers=bearer(reader)).status_code == 200
    assert http.get("/ops/workers", headers=bearer(reader)).status_code == 200


def test_metadata_is_shown_and_searched_with_the_scope_operate_only(http: httpx.Client, home_dsn: str) -> None:
    reader, operator = (bearer(token_for(home_dsn, *scopes)) for scopes in (("read",), ("read", "operate")))
    tag = uuid4().hex
    fields: dict[str, Any] = {"metadata": {"cookie": "secret"}, "tags": [tag], "exclusiveKey": "customer-7"}
    job = submit(http, token_for(home_dsn, "submit"), **fields)["jobId"]
    for headers, shown in ((operator, {"cookie": "secret"}), (reader, None)):
        [listed] = http.get("/ops/jobs", params={"tag": tag}, headers=headers).json()["jobs"]
        for row in (listed, http.get(f"/ops/jobs/{job}", headers=headers).json()):
            assert row.get("metadata") == shown
            assert (row["tags"], row["exclusiveKey"]) == ([tag], "customer-7")
    search = {"metadata": "cookie=secret"}
    assert http.get("/ops/jobs", params=search, headers=operator).status_code == 200
    refused = http.get("/ops/jobs", params=search, headers=reader)
    assert refused.status_code == 403
    assert "operate" in refused.json()["detail"]


def test_why_a_job_was_set_aside_is_shown_with_the_scope_operate_only(
    http: httpx.Client, home_dsn: str, sql: Sql
) -> None:
    job = submit(http, token_for(home_dsn, "submit"))["jobId"]
    sql.execute("select set_aside(%s, 'when it was claimed', '22023', 'secret words of its payload')", [job])
    for scope in ("operate", "read"):
        headers = bearer(token_for(home_dsn, scope))
        assert "secret words" not in http.get(f"/ops/jobs/{job}/explain", headers=headers).text
        shown = http.get(f"/ops/jobs/{job}", headers=headers).text
        assert "set_aside" in shown
        assert ("secret words" in shown) is (scope == "operate")


def test_a_token_from_before_namespaces_does_what_it_did(http: httpx.Client, home_dsn: str, sql: Sql) -> None:
    made = make_token(uuid4())
    sql.execute("select create_token(%s, 'old', %s, '{submit,read}', '{default}')", [made.id, made.hash()])
    sql.execute("update tokens set namespace = null where id = %s", [made.id])
    used = key()
    before = sql.execute("select enqueue('SEND_EMAIL', idempotency_key => %s)::text as id", [used]).fetchone()
    assert before is not None
    old = made.reveal()
    assert submit(http, old, idempotencyKey=used)["jobId"] == before["id"], "keys of before are still found"
    assert http.get(f"/jobs/{before['id']}", headers=bearer(old)).status_code == 200
    assert http.delete(f"/jobs/{before['id']}", headers=bearer(old)).status_code == 200
    assert http.get("/ops/jobs", headers=bearer(old)).status_code == 200
    newer = submit(http, token_for(home_dsn, "submit", namespace="new"))
    assert http.delete(f"/jobs/{newer['jobId']}", headers=bearer(old)).status_code == 404


# -- keys


def test_keys_of_restricted_tokens_are_apart(http: httpx.Client, home_dsn: str, sql: Sql) -> None:
    used = key()
    shop = token_for(home_dsn, "submit", "operate", namespace="shop", kinds=["SEND_EMAIL"])
    bank = token_for(home_dsn, "submit", namespace="bank", kinds=["SEND_EMAIL"])
    free = token_for(home_dsn, "submit", namespace="free")
    jobs = [submit(http, token, idempotencyKey=used)["jobId"] for token in (shop, bank, free)]
    assert len(set(jobs)) == 3
    assert [submit(http, token, idempotencyKey=used)["jobId"] for token in (shop, bank, free)] == jobs
    batch = http.post("/jobs/batch", json={"jobs": [intent(idempotencyKey=used)]}, headers=bearer(bank))
    assert batch.json()["jobs"][0]["jobId"] == jobs[1]
    shown = http.get(f"/ops/jobs/{jobs[0]}", headers=bearer(shop))
    assert shown.json()["idempotencyKey"] == used
    with pytest.raises(psycopg.errors.UniqueViolation):
        sql.execute(
            "insert into jobs (max_attempts, kind, idempotency_key)"
            " select 5, 'k', idempotency_key from jobs where id = %s",
            [jobs[0]],
        )


@pytest.mark.parametrize("scopes", [("submit", "status"), ("submit",), ("submit", "operate")])
def test_a_used_key_never_returns_a_job_that_the_token_may_not_see(
    http: httpx.Client, home_dsn: str, sql: Sql, scopes: tuple[str, ...]
) -> None:
    first = token_for(home_dsn, "submit", "status", namespace="first")
    second = token_for(home_dsn, *scopes, namespace="second")
    used, own = key(), key()
    job = submit(http, first, idempotencyKey=used, payload={"n": 1})
    enqueued = sql.execute("select enqueue('SEND_EMAIL', idempotency_key => %s)::text as id", [own]).fetchone()
    assert enqueued is not None
    for taken, hidden in ((used, job["jobId"]), (own, enqueued["id"])):
        one = http.post("/jobs", json=intent(idempotencyKey=taken, payload={"n": 2}), headers=bearer(second))
        batch = {"jobs": [intent(), intent(idempotencyKey=taken)]}
        many = http.post("/jobs/batch", json=batch, headers=bearer(second))
        for answer in (one, many):
            assert (answer.status_code, answer.json()["type"]) == (409, "/problems/idempotency-conflict")
            assert hidden not in answer.text + str(answer.headers)
            assert "location" not in answer.headers
            assert "idempotency-differs" not in answer.headers
        reader = token_for(home_dsn, "submit", "read", namespace="reader")
        assert submit(http, reader, idempotencyKey=taken)["jobId"] == hidden
    assert submit(http, first, idempotencyKey=used)["jobId"] == job["jobId"], "its own is found as before"
    replaced = token_for(home_dsn, "submit", "status", namespace="first")
    assert submit(http, replaced, idempotencyKey=used)["jobId"] == job["jobId"]
    assert http.get(f"/jobs/{job['jobId']}", headers=bearer(replaced)).status_code == 200


def test_no_key_of_a_client_can_stand_for_another_namespaces(http: httpx.Client, home_dsn: str) -> None:
    free = token_for(home_dsn, "submit", namespace="free")
    for forged in ("\x1fshop\x1fx", "\x1f"):
        answer = http.post("/jobs", json=intent(idempotencyKey=forged), headers=bearer(free))
        assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-request")
    long = token_for(home_dsn, "submit", namespace="n" * 200, queues=["default"])
    refused = http.post("/jobs", json=intent(idempotencyKey="k" * 499), headers=bearer(long))
    assert refused.status_code == 422
    assert "298 bytes" in refused.json()["detail"]
    assert http.post("/jobs", json=intent(idempotencyKey="k" * 298), headers=bearer(long)).status_code == 202


# -- tokens that make tokens


def made_by(http: httpx.Client, token: str, **wanted: Any) -> httpx.Response:
    body = {"name": "child", "scopes": ["operate"]} | wanted
    return http.post("/ops/tokens", json=body, headers=bearer(token))


@pytest.mark.parametrize(
    "wanted",
    [
        {"rate": 6},
        {"expiresAt": (datetime.now(UTC) + timedelta(hours=2)).isoformat()},
        {"scopes": ["operate", "submit"]},
        {"scopes": ["read"]},
    ],
    ids=["rate", "end", "a scope more", "another scope"],
)
def test_a_token_makes_no_stronger_one(http: httpx.Client, home_dsn: str, sql: Sql, wanted: dict[str, Any]) -> None:
    parent = token_for(home_dsn, "operate", rate=5, expires_at=datetime.now(UTC) + timedelta(hours=1))
    before = sql.execute("select count(*) as n from tokens").fetchone()
    answer = made_by(http, parent, **wanted)
    assert (answer.status_code, answer.json()["type"]) == (403, "/problems/forbidden"), answer.text
    assert sql.execute("select count(*) as n from tokens").fetchone() == before


def test_what_is_left_out_is_taken_from_the_maker_and_it_is_named(http: httpx.Client, home_dsn: str) -> None:
    end = datetime.now(UTC) + timedelta(hours=1)
    parent = token_for(home_dsn, "operate", "read", rate=50, expires_at=end)
    made = made_by(http, parent, scopes=["status"]).json()
    assert (made["rate"], datetime.fromisoformat(made["expiresAt"]), made["namespace"]) == (50, end, "child")
    listed = http.get("/ops/tokens", headers=bearer(parent)).json()["tokens"]
    (child,) = [token for token in listed if token["id"] == made["id"]]
    assert (child["createdBy"], child["namespace"]) == (str(id_of(parent)), "child")


def test_who_is_revoked_takes_its_children_with_it(http: httpx.Client, home_dsn: str, sql: Sql) -> None:
    parent = token_for(home_dsn, "operate")
    child = made_by(http, parent).json()["token"]
    grandchild = made_by(http, child).json()["token"]
    boss = token_for(home_dsn, "operate")
    assert http.delete(f"/ops/tokens/{id_of(parent)}", headers=bearer(boss)).status_code == 204
    for token in (parent, child, grandchild):
        until(lambda token=token: http.get("/ops/jobs", headers=bearer(token)).status_code == 401)
    assert http.get("/ops/jobs", headers=bearer(boss)).status_code == 200


def test_a_token_made_while_its_maker_is_revoked_is_revoked_too(home_dsn: str, sql: Sql) -> None:
    """The maker's row is locked by who makes a token: either that comes first and is found, or it is refused."""
    parent, child, late = (make_token(uuid4()) for _ in range(3))
    sql.execute("select create_token(%s, 'p', %s, '{operate}')", [parent.id, parent.hash()])
    call = "select made_namespace from create_token_v1(%s, 'c', %s, '{operate}', created_by => %s)"
    with psycopg.connect(home_dsn, options="-c search_path=leasehold") as making, connect(home_dsn) as revoking:
        making.execute(call, [child.id, child.hash(), parent.id])
        thread = threading.Thread(target=revoking.execute, args=("select revoke_token(%s)", [parent.id]))
        thread.start()
        waiting = "select from pg_locks where not granted and pid = %s"
        until(lambda: sql.execute(waiting, [revoking.info.backend_pid]).rowcount, "the revocation waits for a lock")
        making.commit()
        thread.join(60)
    assert sql.execute("select revoked_at is null as live from tokens where id = %s", [child.id]).fetchone() == {
        "live": False
    }
    with pytest.raises(psycopg.Error) as refused:
        sql.execute(call, [late.id, late.hash(), parent.id])
    assert refused.value.sqlstate == "LH009"


def test_making_a_token_can_be_repeated(http: httpx.Client, home_dsn: str, sql: Sql) -> None:
    parent = token_for(home_dsn, "operate")
    headers = bearer(parent) | {"idempotency-key": key()}
    body = {"name": "once", "scopes": ["operate"]}
    first = http.post("/ops/tokens", json=body, headers=headers)
    again = http.post("/ops/tokens", json=body, headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    other = http.post("/ops/tokens", json=body | {"name": "other"}, headers=headers)
    assert (other.status_code, other.json()["type"]) == (409, "/problems/idempotency-conflict")
    elsewhere = http.post("/ops/tokens", json=body, headers=headers | bearer(token_for(home_dsn, "operate")))
    assert elsewhere.json()["id"] != first.json()["id"]
    assert http.get("/ops/jobs", headers=bearer(first.json()["token"])).status_code == 200


def test_tokens_have_pages(http: httpx.Client, home_dsn: str) -> None:
    boss = token_for(home_dsn, "operate")
    wanted = {str(id_of(token_for(home_dsn, "read"))) for _ in range(7)}
    seen: list[str] = []
    cursor = None
    while True:
        query = {"limit": 3} | ({"cursor": cursor} if cursor else {})
        page = http.get("/ops/tokens", params=query, headers=bearer(boss)).json()
        seen += [token["id"] for token in page["tokens"]]
        cursor = page["cursor"]
        if cursor is None:
            break
        assert len(page["tokens"]) == 3
    assert len(seen) == len(set(seen))
    assert wanted <= set(seen)
    for wrong, status in (("x", 404), (str(uuid4()), 200)):
        assert http.get("/ops/tokens", params={"cursor": wrong}, headers=bearer(boss)).status_code == status


# -- sessions of browsers


def test_a_browser_gets_a_session_that_ends_with_signing_out(served: Served, home_dsn: str) -> None:
    token = token_for(home_dsn, "operate", "submit", queues=["mail"])
    ours = {"origin": served.url, "sec-fetch-site": "same-origin"}
    with httpx.Client(base_url=served.url, timeout=60) as browser:
        signed = browser.post("/dashboard/sign-in", json={"token": token}, headers=ours)
        assert signed.status_code == 200, signed.text
        session = browser.cookies["leasehold_session"]
        assert session != token
        assert token not in str(signed.headers)
        assert browser.get("/dashboard/jobs").status_code == 200
        for path in ("/ops/jobs", f"/jobs/{uuid4()}"):
            assert httpx.get(served.url + path, headers=bearer(session)).status_code == 401, "no API token"
        cookie = {"cookie": f"leasehold_session={token}"}
        assert httpx.get(f"{served.url}/dashboard/jobs", headers=cookie).status_code == 303, "no session"
        assert browser.post("/dashboard/sign-out", headers=ours).status_code == 200
        stolen = {"cookie": f"leasehold_session={session}"}
        assert httpx.get(f"{served.url}/dashboard/jobs", headers=stolen).status_code == 303
    assert httpx.get(f"{served.url}/ops/jobs", headers=bearer(token)).status_code == 200


def test_a_session_ends_with_its_token(served: Served, home_dsn: str, sql: Sql) -> None:
    token = token_for(home_dsn, "read", expires_at=datetime.now(UTC) + timedelta(hours=1))
    ours = {"origin": served.url, "sec-fetch-site": "same-origin"}
    with httpx.Client(base_url=served.url, timeout=60) as browser:
        assert browser.post("/dashboard/sign-in", json={"token": token}, headers=ours).status_code == 200
        kept = sql.execute(
            "select s.session, s.expires_at = p.expires_at as same, s.scopes from tokens s join tokens p"
            " on p.id = s.created_by where p.id = %s", [id_of(token)],
        ).fetchone()  # fmt: skip
        assert kept == {"session": True, "same": True, "scopes": ["read"]}
        assert browser.get("/dashboard/jobs").status_code == 200
        sql.execute("select revoke_token(%s)", [id_of(token)])
        until(lambda: browser.get("/dashboard/jobs").status_code == 303, "the session has ended")


def test_who_may_operate_sees_the_status_of_any_job_and_the_metrics(http: httpx.Client, home_dsn: str) -> None:
    job = submit(http, token_for(home_dsn, "submit", namespace="another"))["jobId"]
    operator = bearer(token_for(home_dsn, "operate"))
    for path in (f"/jobs/{job}", "/metrics", f"/ops/jobs/{job}"):
        assert http.get(path, headers=operator).status_code == 200, path
    assert http.get(f"/jobs/{job}/result", headers=operator).json()["type"] == "/problems/not-finished"
    assert http.get(f"/jobs/{job}", headers=bearer(token_for(home_dsn, "status"))).status_code == 404
    elsewhere = bearer(token_for(home_dsn, "operate", queues=["elsewhere"]))
    assert http.get(f"/jobs/{job}", headers=elsewhere).status_code == 404
