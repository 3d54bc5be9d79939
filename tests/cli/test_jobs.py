"""`leasehold jobs list|show|explain|tail`: data on standard output, a line a job; JSON as the HTTP API writes it."""

import json
import subprocess
import sys
from uuid import UUID, uuid4

from leasehold.operate import jobs as operate_jobs
from tests.cli.conftest import leasehold
from tests.cli.terminal import terminal


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
    assert (more["cursor"], cli("jobs", "list", "-n", "5").err) == (None, "")


def test_a_misspelt_queue_or_kind_is_an_error_that_names_those_that_exist(cli, sql):
    sql.enqueue("SEND", "mail")
    sql.enqueue("REPORT", "reports")
    for command in (["list"], ["tail", "--for", "1s"], ["retry"], ["cancel"]):
        done = cli("jobs", *command, "--queue", "mial", code=1)
        assert done.out == ""
        assert "error: queue 'mial' unknown\nhint: did you mean 'mail'? known: mail, reports\n" in done.err
        assert "kind 'SND' unknown" in cli("jobs", *command, "--kind", "SND", code=1).err


def test_show_prints_everything_about_a_job(cli, sql):
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
    assert (done.out, done.err) == ("", "nothing is in its way: a worker may claim it any moment\n")


def test_an_unknown_job_is_a_negative_result(cli):
    unknown = str(uuid4())
    for command in ("show", "explain"):
        assert unknown in cli("jobs", command, unknown, code=1).err


def test_tail_shows_each_change_once_as_json_lines(dsn, cli, sql):
    old = sql.enqueue("OLD")
    with terminal("jobs", "tail", "--every", "0.1s", "--json", LEASEHOLD_DSN=dsn, columns=2000) as tail:
        shown = tail.expect("}\n")
        job = sql.enqueue("NEW")
        shown = tail.expect("}\n", after=shown)
        sql("select id from claim('w1', kinds => '{NEW}')")
        shown = tail.expect("}\n", after=shown)
        sql.fail(job)
        tail.expect("}\n", after=shown)
        tail.interrupt()
        tail.end()
    changes = [json.loads(line) for line in tail.text.splitlines() if line.startswith("{")]
    assert changes[0]["jobId"] == old, "it begins with the latest that are there"
    assert [change["state"] for change in changes if change["jobType"] == "NEW"] == ["queued", "running", "dead"]
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


def test_a_list_shows_failures_of_the_budget_and_not_claims(cli, sql):
    job = sql.enqueue("SNOOZED", "snoozed", max_attempts=40)
    for attempt in range(1, 4):
        sql("select id from claim('w', queues => '{snoozed}')")
        sql("select fail('w', %s, %s, outcome => 'snoozed', retry_after => 0)", job, attempt)
        sql("select promote()")
    done = cli("jobs", "list", "--kind", "SNOOZED")
    assert ("0/40" in done.out, "3/40" in done.out) == (True, False), done.out


def test_what_a_job_logged_has_times_that_people_read(cli, sql):
    job = sql.enqueue("SAID", "said")
    sql("select id from claim('w', queues => '{said}')")
    sql('insert into job_logs (job_id, attempt, lines) values (%s, 1, \'[[1760000000.25, "INFO", "hello"]]\')', job)
    shown = cli("jobs", "show", job).out
    assert "2025-10-09T08:53:20.250Z INFO hello" in shown, shown


def test_explain_says_why_a_job_died(cli, sql):
    job = sql.dead()
    told = cli("jobs", "explain", job).out
    assert "finished: it ended as dead" in told
    assert "dead: the task said that trying again is of no use" in told or "dead: it failed max_attempts times" in told
    assert "last error: Boom" in told, told


def test_a_job_that_succeeded_has_no_error_any_more(cli, sql):
    job = sql.dead("MENDED", "mended")
    cli("jobs", "retry", job)
    [(attempt,)] = sql("select attempt from claim('w', queues => '{mended}')")
    sql("select complete('w', array[%s::uuid], array[%s])", job, attempt)
    found = cli("jobs", "show", job, "--json").json
    assert (found["state"], found["errorClass"], len(found["attempts"])) == ("success", None, 1)


def test_a_job_that_fails_again_meanwhile_is_retried_once(cli, sql, monkeypatch):
    sql("select history(true)")
    jobs = [sql.enqueue() for _ in range(3)]
    end = "select cancel(id) from jobs where state <> 'dead'"
    sql(end)
    monkeypatch.setattr("leasehold.cli.jobs._BATCH", 1)
    retry = operate_jobs.change_matching

    async def retry_and_fail(*args, **options):
        changed = await retry(*args, **options)
        sql(end)
        return changed

    monkeypatch.setattr(operate_jobs, "change_matching", retry_and_fail)
    assert "retried 3 jobs" in cli("jobs", "retry", "--queue", "mail", "--yes").err
    retried = sql("select job_id, count(*) from events where from_state = 'dead' group by 1")
    assert sorted(retried) == sorted((UUID(job), 1) for job in jobs)
