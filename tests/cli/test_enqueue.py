"""`leasehold enqueue`: records a job; with --wait its result is the command's own."""

import json
import threading
from pathlib import Path

import pytest

from faults.waiting import until
from tests.cli.terminal import terminal

TASKS = """
from leasehold import App
app = App()

@app.task(kind="ADD", queue="sums", priority=7, max_attempts=2)
async def add(a: int, b: int = 1) -> int:
    return a + b
"""


@pytest.fixture
def known(sql):
    sql("select start_worker('w1', kinds => '{SEND,REPORT}', lease_seconds => '{10,10}')")
    return sql


def test_it_prints_the_id_and_keeps_texts_apart_from_json(cli, known):
    job = cli(
        "enqueue", "SEND", "-p", "to=ada", "-p", "n:=3", "-p", 'more:={"x": [1, null]}', "-p", "eq=a=b"
    ).out.strip()
    ((payload, queue, state),) = known("select payload, queue, state from jobs where id = %s", job)
    assert payload == {"to": "ada", "n": 3, "more": {"x": [1, None]}, "eq": "a=b"}
    assert (queue, state) == ("default", "queued")


def test_every_option_reaches_the_job(cli, known):
    done = cli(
        "enqueue", "SEND", "--payload", '{"to": "ada"}', "-q", "mail", "--priority", "-5", "--max-attempts", "9",
        "--in", "1h30m", "--key", "k1", "--exclusive-key", "x1", "--tag", "a", "--tag", "b", "--json",
    )  # fmt: skip
    assert done.json.keys() == {"jobId", "jobType", "queue"}
    columns = "queue, priority, max_attempts, idempotency_key, exclusive_key, tags, state"
    assert known(f"select {columns} from jobs") == [("mail", -5, 9, "k1", "x1", ["a", "b"], "created")]
    assert known("select run_at - created_at > interval '89 minutes' from jobs") == [(True,)]
    again = cli("enqueue", "SEND", "--key", "k1", "--json")
    assert again.json["jobId"] == done.json["jobId"]
    assert "has a job already" in again.err
    at = cli("enqueue", "SEND", "--run-at", "2040-01-01T00:00:00Z").out.strip()
    assert known("select extract(year from run_at)::integer from jobs where id = %s", at) == [(2040,)]


def test_a_kind_that_no_worker_knows_is_refused_unless_it_is_meant(cli, known):
    done = cli("enqueue", "SNED", code=1)
    assert "kind 'SNED' unknown" in done.err
    assert "did you mean 'SEND'? known: REPORT, SEND; --anyway records it nevertheless" in done.err
    assert known("select count(*) from jobs") == [(0,)]
    cli("enqueue", "SNED", "--anyway")


def test_with_the_app_arguments_are_checked_and_the_tasks_own_options_taken(
    cli, sql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "sums_for_the_cli.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    app = ("--app", "sums_for_the_cli:app")
    cli("enqueue", "ADD", "-p", "a:=1", *app)
    assert sql("select payload, queue, priority, max_attempts from jobs") == [({"a": 1}, "sums", 7, 2)]
    done = cli("enqueue", "ADD", "-p", "a=one", "-p", "c:=1", *app, code=2)
    assert "ADD: " in done.err
    assert "a" in done.err
    assert "kind 'SUB' unknown" in cli("enqueue", "SUB", *app, code=2).err
    assert sql("select count(*) from jobs") == [(1,)]


def test_wait_prints_the_result(cli, known):
    def work() -> None:
        jobs = until(known.claim)
        known("select complete('w1', array[%s]::uuid[], '{1}', array['{\"sum\": 3}']::jsonb[])", jobs[0])

    for json_wanted in (False, True):
        working = threading.Thread(target=work)
        working.start()
        done = cli("enqueue", "SEND", "--wait", "--timeout", "60s", *(["--json"] if json_wanted else []))
        working.join()
        known("update workers set claim_id = null")
        if json_wanted:
            assert (done.json["status"], done.json["result"]) == ("COMPLETED", {"sum": 3})
        else:
            assert json.loads(done.out) == {"sum": 3}


def test_wait_ends_with_1_when_the_job_dies_or_the_time_is_over(cli, known):
    def work() -> None:
        jobs = until(known.claim)
        known.fail(jobs[0])

    working = threading.Thread(target=work)
    working.start()
    done = cli("enqueue", "SEND", "--wait", code=1)
    working.join()
    assert done.out == ""
    assert "is dead, fatal: it broke" in done.err
    assert "leasehold jobs show" in done.err
    late = cli("enqueue", "REPORT", "--wait", "--timeout", "0.3s", code=1)
    assert "is still queued after 0.3 s" in late.err
    assert "it goes on" in late.err


def test_ctrl_c_ends_the_waiting_and_not_the_job(dsn, known):
    with terminal("enqueue", "SEND", "--wait", LEASEHOLD_DSN=dsn, columns=120) as screen:
        screen.expect("queued")
        screen.interrupt()
        assert screen.end() == 130
        assert "Traceback" not in screen.text
    assert known("select state from jobs") == [("queued",)]
