"""Who may do what: every route with every scope, tokens that are none, and nothing secret where it could be read."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from faults.waiting import until
from leasehold import App, api
from leasehold.db.database import Database
from leasehold.tokens import SCOPES, make_token, parse_token
from tests.http.conftest import Sql, intent, key
from tests.http.running import Served, serving, token_for
from tests.timing import bound


@cache
def operations() -> list[tuple[str, str, frozenset[str]]]:
    """Every route with the scopes that it needs, any of them, as its own description has it."""
    document = api(App(dsn="postgresql://unknown.invalid/x")).openapi()
    return [
        (method.upper(), path, frozenset(scope for choice in operation["security"] for scope in choice["bearer"]))
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def called(http: httpx.Client, method: str, path: str, token: str | None) -> httpx.Response:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    target = re.sub(r"\{(\w*[iI]d)\}", str(uuid4()), path).replace("{scope}", "queue")
    target = re.sub(r"\{\w+\}", "nobody-uses-this", target)
    return http.request(method, target, headers=headers, json={} if method in {"POST", "PUT"} else None)


@pytest.fixture(scope="module")
def tokens(home_dsn: str) -> dict[str, str]:
    """One token for each scope, made before the server starts."""
    return {scope: token_for(home_dsn, scope) for scope in SCOPES}


@pytest.fixture(scope="module")
def served(home_dsn: str, tokens: dict[str, str]) -> Iterator[Served]:
    with serving(home_dsn, "--access-log", "--verbose") as running:
        yield running


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_the_description_knows_every_route_and_most_need_a_scope() -> None:
    open_to_all = {path for _, path, scopes in operations() if not scopes}
    assert open_to_all == {"/healthz", "/readyz", "/problems/{name}"}
    assert len(operations()) >= 10


@pytest.mark.parametrize("scope", SCOPES)
def test_every_route_takes_the_scopes_that_it_names_and_no_others(
    http: httpx.Client, tokens: dict[str, str], scope: str
) -> None:
    for method, path, scopes in operations():
        answer = called(http, method, path, tokens[scope])
        if scopes and scope not in scopes:
            assert (answer.status_code, answer.json()["type"]) == (403, "/problems/forbidden"), f"{method} {path}"
        else:
            assert answer.status_code not in {401, 403, 500, 503}, f"{method} {path}: {answer.text}"


def test_every_route_that_needs_a_scope_needs_a_token(http: httpx.Client) -> None:
    for method, path, scopes in operations():
        answer = called(http, method, path, None)
        assert (answer.status_code == 401) == bool(scopes), f"{method} {path}: {answer.text}"
        if scopes:
            assert answer.headers["www-authenticate"].startswith("Bearer")


def test_what_is_no_token_is_refused_always_with_the_same_words(http: httpx.Client, tokens: dict[str, str]) -> None:
    good = tokens["read"]
    parsed = parse_token(good)
    assert parsed is not None
    stranger = parse_token(good.replace(good[3:7], "AAAA"))
    wrong_secret = good[:-6] + "AAAAAA"
    headers = [
        "", "Bearer", good, f"Basic {good}", f"Token {good}", "Bearer lh_", f"Bearer {good[:-1]}",
        f"Bearer {good}x", f"Bearer {wrong_secret}", f"Bearer {good.upper()}", "Bearer " + "a" * 5000,
        f"Bearer {stranger.reveal() if stranger else 'lh_x'}", "Bearer ' or 1=1 --", f"Bearer {good}, Bearer {good}",
    ]  # fmt: skip
    answers = {http.get(f"/jobs/{uuid4()}", headers={"authorization": value}).text for value in headers}
    assert len(answers) == 1
    assert json.loads(answers.pop())["type"] == "/problems/unauthorized"
    assert http.get(f"/jobs/{uuid4()}", headers={"authorization": f"bearer {good}"}).status_code == 404


def test_a_revoked_token_is_good_for_nothing_within_moments(home_dsn: str, http: httpx.Client) -> None:
    token = token_for(home_dsn, "read")
    assert http.get(f"/jobs/{uuid4()}", headers=bearer(token)).status_code == 404
    database = Database(home_dsn, schema="leasehold")
    parsed = parse_token(token)
    assert parsed is not None
    assert database.run(database.store.revoke_token(parsed.id))
    database.close()
    until(lambda: http.get(f"/jobs/{uuid4()}", headers=bearer(token)).status_code == 401, within=bound(15))


def test_an_expired_token_is_good_for_nothing(home_dsn: str, http: httpx.Client) -> None:
    token = token_for(home_dsn, "read", expires_at=datetime.now(UTC) - timedelta(seconds=1))
    assert http.get(f"/jobs/{uuid4()}", headers=bearer(token)).status_code == 401
    lasting = token_for(home_dsn, "read", expires_at=datetime.now(UTC) + timedelta(hours=1))
    assert http.get(f"/jobs/{uuid4()}", headers=bearer(lasting)).status_code == 404


def test_a_token_has_its_rate_and_no_other_token_suffers(
    home_dsn: str, http: httpx.Client, tokens: dict[str, str]
) -> None:
    slow = token_for(home_dsn, "read", rate=0.2)
    path = f"/jobs/{uuid4()}"
    answers = [http.get(path, headers=bearer(slow)) for _ in range(5)]
    assert answers[0].status_code == 404
    limited = [answer for answer in answers if answer.status_code == 429]
    assert len(limited) >= 3
    assert {answer.json()["type"] for answer in limited} == {"/problems/rate-limited"}
    assert all(1 <= int(answer.headers["retry-after"]) <= 5 for answer in limited)
    assert {http.get(path, headers=bearer(tokens["read"])).status_code for _ in range(20)} == {404}


def test_a_restricted_token_sees_404_and_submits_403_outside_its_queues_and_kinds(
    home_dsn: str, http: httpx.Client, sql: Sql, tokens: dict[str, str]
) -> None:
    theirs = http.post("/jobs", json=intent(queue="theirs"), headers=bearer(tokens["submit"])).json()
    mine = token_for(home_dsn, "submit", "read", queues=["mine"], kinds=["K"])
    for body in (intent(queue="mine"), intent(jobType="K"), intent(jobType="K", queue="theirs")):
        refused = http.post("/jobs", json=body, headers=bearer(mine))
        assert (refused.status_code, refused.json()["type"]) == (403, "/problems/forbidden")
        batch = http.post("/jobs/batch", json={"jobs": [intent(jobType="K", queue="mine"), body]}, headers=bearer(mine))
        assert batch.status_code == 403
    for path, body in (("/jobs", intent(jobType="K")), ("/jobs/batch", {"jobs": [intent(jobType="K")]})):
        detail = http.post(path, json=body, headers=bearer(mine)).json()["detail"]
        assert detail == "this token is not good for the queue that jobs of that jobType wait in", "and no advice"
    own = http.post("/jobs", json=intent(jobType="K", queue="mine"), headers=bearer(mine))
    assert own.status_code == 202
    assert http.get(f"/jobs/{own.json()['jobId']}", headers=bearer(mine)).status_code == 200
    for method, tail in (("GET", ""), ("GET", "/result"), ("GET", "/events"), ("DELETE", "")):
        hidden = http.request(method, f"/jobs/{theirs['jobId']}{tail}", headers=bearer(mine))
        nothing = http.request(method, f"/jobs/{uuid4()}{tail}", headers=bearer(mine))
        assert (hidden.status_code, hidden.text) == (404, nothing.text)
    state = sql.execute("select state::text from jobs where id = %s", [theirs["jobId"]]).fetchone()
    assert state == {"state": "queued"}


def test_a_used_key_of_a_job_that_the_token_may_not_see_is_409_and_reveals_nothing(
    home_dsn: str, http: httpx.Client, sql: Sql, tokens: dict[str, str]
) -> None:
    used = key()
    theirs = http.post(
        "/jobs", json=intent(queue="theirs", idempotencyKey=used), headers=bearer(tokens["submit"])
    ).json()
    made = make_token(uuid4())  # as a release before namespaces makes it: keys of later ones are apart
    sql.execute("select create_token(%s, 'old', %s, '{submit}', '{mine}')", [made.id, made.hash()])
    sql.execute("update tokens set namespace = null where id = %s", [made.id])
    mine = made.reveal()
    body = intent(queue="mine", idempotencyKey=used)
    single = http.post("/jobs", json=body, headers=bearer(mine))
    fresh = intent(queue="mine")
    batch = http.post("/jobs/batch", json={"jobs": [fresh, body]}, headers=bearer(mine))
    for answer in (single, batch):
        assert (answer.status_code, answer.json()["type"]) == (409, "/problems/idempotency-conflict")
        assert theirs["jobId"] not in answer.text
        assert "theirs" not in answer.text
    found = sql.execute(
        "select count(*) as n from jobs where idempotency_key = %s", [fresh["idempotencyKey"]]
    ).fetchone()
    assert found == {"n": 0}, "all or none"


def test_nothing_secret_is_in_the_log(
    served: Served, http: httpx.Client, home_dsn: str, tokens: dict[str, str]
) -> None:
    secret_payload = f"secret-{uuid4()}"
    wrong = tokens["read"][:-6] + "AAAAAA"
    http.post("/jobs", json=intent(payload={"s": secret_payload}), headers=bearer(tokens["submit"]))
    http.post("/jobs", json=intent(payload={"s": secret_payload}, priority="x"), headers=bearer(tokens["submit"]))
    http.post("/jobs", content=b'{"s": "' + secret_payload.encode(), headers=bearer(tokens["submit"]))
    http.get(f"/jobs/{uuid4()}", headers=bearer(wrong))
    log = served.log.read_text()
    assert "POST /jobs" in log
    for secret in (secret_payload, *(token.split("_", 2)[2] for token in (*tokens.values(), wrong))):
        assert secret not in log


def test_a_loopback_server_is_open_until_the_first_token_and_stays_closed_when_it_is_revoked(dsn: str) -> None:
    with serving(dsn) as open_one, httpx.Client(base_url=open_one.url, timeout=30) as http:
        assert http.post("/jobs", json=intent()).status_code == 202
        token = token_for(dsn, "submit")
        until(lambda: http.post("/jobs", json=intent()).status_code == 401, within=bound(15))
        assert http.post("/jobs", json=intent(), headers=bearer(token)).status_code == 202
        parsed = parse_token(token)
        assert parsed is not None
        database = Database(dsn, schema="leasehold")
        database.run(database.store.revoke_token(parsed.id))
        database.close()
        until(lambda: http.post("/jobs", json=intent(), headers=bearer(token)).status_code == 401, within=bound(15))
        assert http.post("/jobs", json=intent()).status_code == 401


def test_secrets_are_compared_in_constant_time_and_nowhere_else() -> None:
    """Read, not measured: on a noisy machine a measurement would be a lottery."""
    folder = Path(__file__).parents[2] / "leasehold"
    text = (folder / "tokens.py").read_text() + (folder / "http" / "auth.py").read_text()
    assert "hmac.compare_digest(self.hash(), secret_hash)" in text
    assert "token.fits(stored.secret_hash)" in text
    assert not re.search(r"secret_hash\s*[=!]=|[=!]=\s*\S*secret_hash", text)


def test_a_job_without_a_queue_waits_where_its_task_declares_if_the_token_is_good_for_that(
    served: Served, sql: Sql, home_dsn: str
) -> None:
    sql.execute(
        'select declare_tasks(\'[{"kind": "DECLARED", "lease_seconds": 30, "queue": "declared",'
        ' "priority": 4, "max_attempts": 3}]\')'
    )
    good = token_for(home_dsn, "submit", queues=["declared", "own"])
    bad = token_for(home_dsn, "submit", queues=["own"])
    body = {"jobType": "DECLARED", "payload": {}}

    def posted(token: str, **more: str) -> httpx.Response:
        return httpx.post(f"{served.url}/jobs", json=body | {"idempotencyKey": key()} | more, headers=bearer(token))

    made = posted(good)
    assert (made.status_code, made.json()["queue"]) == (202, "declared")
    row = sql.execute("select priority, max_attempts from jobs where id = %s", [made.json()["jobId"]]).fetchone()
    assert row == {"priority": 4, "max_attempts": 3}
    assert posted(good, queue="own").json()["queue"] == "own"
    refused = posted(bad)
    assert (refused.status_code, refused.json()["type"]) == (403, posted(bad, queue="declared").json()["type"])
    assert "declared" not in refused.json()["detail"].replace("declares", "")
    batch = {"jobs": [body | {"idempotencyKey": key()}]}
    answer = httpx.post(f"{served.url}/jobs/batch", json=batch, headers=bearer(bad))
    assert answer.status_code == 403
    assert posted(bad, queue="own").status_code == 202
