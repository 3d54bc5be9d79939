"""`leasehold jobs list|show|explain|tail`: data on standard output, a line a job; JSON as the HTTP API writes it."""

import json
import subprocess
import sys
import threading
import time
from uuid import uuid4

from tests.cli.conftest import leasehold


def test_list_shows_the_latest_first_and_filters(cli, sql):
    first, second = sql.enqueue("SEND", "mail"), sql.enqueue("REPORT", "reports", priority=3)
    dead = sql.dead("SEND", "bills", error_class="MailServerBusy")
    assert [cells[0] for cells in cli("jobs", "list").cells] == [dead, second, first]
    assert cli("jobs", "list", "--queue", "mail").cells[0][:5] == [first, "SEND", "mail", "queued", "0/40"]
    (row,) = cli("jobs", "list", "-s", "dead", "--error", "MailServerBusy").cells
    assert row[3] == "dead"
    assert row[-1] == "fatal, MailServerBusy"
    found = cli("jobs", "list", "-k", "REPORT", "--since", "1h", "--json").json
    assert found["cursor"] is None
    (job,) = found["jobs"]
    assert (job["jobId"], job["jobType"], job["priority"], job["leaseOwner"]) == (second, "REPORT", 3, None)
    assert job["createdAt"].count("T") == 1
    done = cli("jobs", "list", "--before", "1h")
    assert (done.out, done.err) == ("", "no job fits\n")


def test_a_long_list_goes_on_where_it_ended(cli, sql):
    jobs = [sql.enqueue() for _ in range(5)]
    page = cli("jobs", "list", "-n", "3", "--json").json
    more = cli("jobs", "list", "-n", "3", "--cursor", page["cursor"], "--json").json
    assert [job["jobId"] for job in page["jobs"] + more["jobs"]] == jobs[::-1]
    assert f"--cursor '{page['cursor']}'" in cli("jobs", "list", "-n", "3").err


def test_a_misspelt_queue_or_kind_is_told_with_those_that_exist(cli, sql):
    sql.enqueue("SEND", "mail")
    sql.enqueue("REPORT", "reports")
    for command in (["list"], ["tail", "--for", "1s"], ["retry"], ["cancel"]):
        done = cli("jobs", *command, "--queue", "mial", code=1)
        assert done.out == ""
        assert "error: queue 'mial' unknown\nhint: did you mean 'mail'? known: mail, reports\n" in done.err
        assert "kind 'SND' unknown" in cli("jobs", *command, "--kind", "SND", code=1).err


def test_show_tells_everything_about_a_job(cli, sql):
    job = sql.enqueue(
        "SEND", "mail", payload=json.dumps({"to": "ada", "bad": "\x1b[31mred"}), tags=["urgent"], max_attempts=2
    )
    sql.claim()
    sql.fail(job, error_class="MailServerBusy", fatal=False)
    shown = cli("jobs", "show", job).out
    for words in ("SEND", "retry (PENDING)", '"to": "ada"', "urgent", "attempt 1, failed", "MailServerBusy: it broke"):
        assert words in shown
    assert "it may run from" in shown
    assert "\x1b" not in shown, "what a job carries must not reach the terminal as it is"
    detail = cli("jobs", "show", job, "--json").json
    assert detail["payload"] == {"to": "ada", "bad": "\x1b[31mred"}
    assert detail["attempts"][0]["errorClass"] == "MailServerBusy"
    assert "backoff" in [reason["reason"] for reason in detail["reasons"]]
    assert (detail["jobId"], detail["maxAttempts"], detail["retryCount"]) == (job, 2, 1)


def test_explain_says_why_a_job_does_not_run(cli, sql):
    job = sql.enqueue("SEND", "mail")
    sql("select pause('mail', 'the server is down', 'ann')")
    lines = cli("jobs", "explain", job).out.splitlines()
    assert lines[0].startswith("paused: the queue 'mail' is paused")
    assert lines[1].startswith("no_worker_for_kind: ")
    found = cli("jobs", "explain", job, "--json").json
    assert found["jobId"] == job
    assert [reason["reason"] for reason in found["reasons"]] == ["paused", "no_worker_for_kind"]
    sql("select resume('mail')")
    sql("select start_worker('w1')")
    done = cli("jobs", "explain", job)
    assert (done.out, done.err) == ("", "nothing is in its way: a worker may take it any moment\n")


def test_an_unknown_job_is_a_negative_result(cli):
    unknown = str(uuid4())
    for command in ("show", "explain"):
        assert unknown in cli("jobs", command, unknown, code=1).err


def test_tail_shows_each_change_once_as_json_lines(dsn, cli, sql):
    old = sql.enqueue("OLD")

    def change() -> None:
        time.sleep(0.3)
        job = sql.enqueue("NEW")
        time.sleep(0.5)
        sql("select id from claim('w1', kinds => '{NEW}')")
        time.sleep(0.5)
        sql.fail(job)

    changing = threading.Thread(target=change)
    changing.start()
    out = cli("jobs", "tail", "--for", "5s", "--every", "0.1s", "--json").out
    changing.join()
    changes = [json.loads(line) for line in out.splitlines()]
    assert changes[0]["jobId"] == old, "it begins with the latest that are there"
    new = [change["state"] for change in changes if change["jobType"] == "NEW"]
    # Two changes between two looks are seen as one; none is seen twice.
    assert new[-1] == "dead"
    assert [state for state in ("queued", "running", "dead") if state in new] == new
    assert cli("jobs", "tail", "-n", "0", "--for", "0.1s").out == ""


def test_a_reader_that_leaves_early_is_no_error(dsn, sql):
    for _ in range(20):
        sql.enqueue()
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m leasehold jobs list --dsn '{dsn}' | head -1"], capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert len(done.stdout.splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert leasehold("jobs", "list", "--dsn", dsn).stdout.count("\n") == 20
