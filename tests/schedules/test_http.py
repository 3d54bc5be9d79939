"""Laws of /ops/schedules, against a real server."""

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest

from leasehold.tokens import make_token
from tests.http.running import serving
from tests.sql.conftest import Database, Session

Client = Callable[..., httpx.Client]


@pytest.fixture(scope="module")
def site(admin: Any, migrated: str) -> Iterator[tuple[str, Session]]:
    with admin.database(template=migrated) as name:
        database = Database(admin.server.dsn(name))
        session = database.connect()
        add_token(session, "read")  # from the first request on, tokens are needed
        with serving(admin.server.dsn(name)) as served:
            yield served.url, session
            assert served.process.poll() is None, "the server is down"
            assert "Traceback" not in served.log.read_text()
        database.close()


def add_token(session: Session, *scopes: str, queues: list[str] | None = None) -> str:
    token = make_token(uuid4())
    session.one("create_token", id=token.id, name="ann", secret_hash=token.hash(), scopes=list(scopes), queues=queues)
    return token.reveal()


@pytest.fixture
def session(site: tuple[str, Session]) -> Session:
    site[1].execute("truncate schedules, jobs")
    return site[1]


@pytest.fixture
def client(site: tuple[str, Session], session: Session) -> Iterator[Client]:
    made: list[httpx.Client] = []

    def make(*scopes: str, **restrictions: Any) -> httpx.Client:
        headers = {"authorization": f"Bearer {add_token(session, *scopes, **restrictions)}"}
        made.append(httpx.Client(base_url=site[0], headers=headers, timeout=30))
        return made[-1]

    yield make
    for one in made:
        one.close()


DAILY = {"jobType": "REPORT", "cron": "0 6 * * *", "timeZone": "Europe/Berlin", "payload": {"a": 1}, "queue": "q"}


def test_a_schedule_is_made_looked_at_changed_and_taken_away(client: Client, session: Session) -> None:
    operator = client("operate")
    made = operator.put("/ops/schedules/daily", json={**DAILY, "tags": ["t"], "jitterSeconds": 1.5, "missed": "all"})
    assert made.status_code == 200, made.text
    view = made.json()
    assert (view["key"], view["jobType"], view["cron"], view["everySeconds"]) == ("daily", "REPORT", "0 6 * * *", None)
    assert (view["payload"], view["tags"], view["jitterSeconds"], view["missed"]) == ({"a": 1}, ["t"], 1.5, "all")
    runs = [datetime.fromisoformat(run) for run in view["nextRuns"]]
    assert len(runs) == 5
    assert all(timedelta(hours=22) < b - a < timedelta(hours=26) for a, b in zip(runs, runs[1:], strict=False))  # noqa: RUF007
    assert operator.get("/ops/schedules/daily").json() == view
    changed = operator.put("/ops/schedules/daily", json={"jobType": "REPORT", "everySeconds": 90}).json()
    assert (changed["cron"], changed["everySeconds"], changed["payload"]) == (None, 90, {})
    assert [row["key"] for row in operator.get("/ops/schedules").json()["schedules"]] == ["daily"]
    assert operator.delete("/ops/schedules/daily").status_code == 204
    assert operator.delete("/ops/schedules/daily").status_code == 404


def test_it_is_switched_off_and_on_and_run_at_a_persons_word(client: Client, session: Session) -> None:
    operator = client("operate")
    operator.put("/ops/schedules/a/b", json=DAILY)
    off = operator.post("/ops/schedules/a/b/disable").json()
    assert (off["enabled"], off["nextRuns"]) == (False, [])
    assert operator.put("/ops/schedules/a/b", json=DAILY).json()["enabled"] is False, "it says nothing about that"
    assert operator.post("/ops/schedules/a/b/enable", json={"fromNow": True}).json()["enabled"] is True
    answer = operator.post("/ops/schedules/a/b/run")
    assert answer.status_code == 202
    job = answer.json()["jobId"]
    assert answer.headers["location"] == f"/jobs/{job}"
    assert session.job(job)["payload"] == {"a": 1}
    for path in ("disable", "run"):
        assert operator.post(f"/ops/schedules/other/{path}").status_code == 404
    assert operator.post("/ops/schedules/other/enable", json={}).status_code == 404


def test_running_it_is_repeated_with_the_same_key_and_returns_the_same_job(client: Client, session: Session) -> None:
    operator = client("operate")
    operator.put("/ops/schedules/daily", json=DAILY)
    answers = [
        who.post("/ops/schedules/daily/run", headers={"Idempotency-Key": "k"})
        for who in (operator, operator, client("operate"))
    ]
    assert {answer.status_code for answer in answers} == {202}
    assert len({(answer.text, answer.headers["location"]) for answer in answers}) == 1
    other = operator.post("/ops/schedules/daily/run", headers={"Idempotency-Key": "l"})
    assert other.json()["jobId"] != answers[0].json()["jobId"]
    assert session.value("select count(*) from jobs") == 2
    wrong = operator.post("/ops/schedules/daily/run", headers={"Idempotency-Key": "x" * 501})
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "Idempotency-Key")
    twice = operator.post("/ops/schedules/daily/run", headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b")])
    assert twice.status_code == 400


def test_a_schedule_without_a_queue_gets_what_its_task_declares(client: Client, session: Session) -> None:
    task = {"kind": "REPORT", "lease_seconds": 30, "queue": "reports", "priority": 7, "max_attempts": 3}
    session.execute("select declare_tasks(%s::jsonb)", [json.dumps([task])])
    made = client("operate").put("/ops/schedules/daily", json={"jobType": "REPORT", "everySeconds": 60})
    assert made.status_code == 200, made.text
    assert {name: made.json()[name] for name in ("queue", "priority", "maxAttempts")} == {
        "queue": "reports", "priority": 7, "maxAttempts": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"cron": "99 * * * *"}, "cron"),
        ({"cron": None}, "cron"),
        ({"timeZone": "Mars/Olympus"}, "timeZone"),
        ({"everySeconds": 60}, ""),
        ({"missed": "maybe"}, "missed"),
        ({"maxMissed": 0}, "maxMissed"),
        ({"payload": []}, "payload"),
        ({"colour": 1}, "colour"),
        ({"startsAt": "2030-01-02T00:00:00Z", "endsAt": "2030-01-01T00:00:00Z"}, ""),
        ({"startsAt": "tomorrow"}, "startsAt"),
        ({"jobType": None}, "jobType"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_by_its_field(
    client: Client, session: Session, change: dict[str, Any], field: str
) -> None:
    answer = client("operate").put("/ops/schedules/x", json={**DAILY, **change})
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert session.rows("schedule_list") == []


def test_a_token_that_may_only_read_sees_nothing_of_what_jobs_carry_and_changes_nothing(
    client: Client, session: Session
) -> None:
    operator, reader, narrow = client("operate"), client("read"), client("operate", "read", queues=["mail"])
    operator.put("/ops/schedules/daily", json={**DAILY, "exclusiveKey": "x", "tags": ["t"], "metadata": {"trace": "t"}})
    assert operator.get("/ops/schedules/daily").json()["metadata"] == {"trace": "t"}
    seen = reader.get("/ops/schedules/daily").json()
    assert (seen["payload"], seen["metadata"]) == (None, None)
    assert (seen["exclusiveKey"], seen["tags"], seen["jobType"]) == ("x", ["t"], "REPORT")
    assert narrow.get("/ops/schedules").json() == {"schedules": [], "cursor": None}
    assert narrow.get("/ops/schedules/daily").status_code == 404
    for who in (reader, narrow):
        for answer in (
            who.put("/ops/schedules/daily", json=DAILY),
            who.delete("/ops/schedules/daily"),
            who.post("/ops/schedules/daily/enable", json={}),
            who.post("/ops/schedules/daily/disable"),
            who.post("/ops/schedules/daily/run"),
        ):
            assert answer.status_code == 403, answer.text


def test_an_invalid_rule_that_sql_took_is_still_shown(client: Client, session: Session) -> None:
    session.one("schedule_put", key="bad", kind="k", cron="99 * * * *")
    assert client("read").get("/ops/schedules/bad").json()["nextRuns"] == []
