"""`leasehold queues|workers|limits|errors|stats|verify|prune|init`: what operators look at and turn."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import leasehold
from tests.cli.terminal import terminal


def test_queues_are_listed_paused_and_resumed(cli, sql):
    sql.enqueue("SEND", "mail")
    sql.enqueue("REPORT", "reports")
    sql("select set_limit('queue', 'reports', 5)")
    done = cli("queues", "pause", "mail", "--reason", "the server is down")
    assert done.out == ""
    assert "queue 'mail' is paused" in done.err
    mail, reports = cli("queues", "list").cells
    assert mail[:2] == ["mail", "1"]
    assert mail[6] == "paused, 1 waiting"
    assert mail[-1].endswith(": the server is down")
    assert (reports[0], reports[6], reports[7], reports[8]) == ("reports", "no worker serves it", "5", "-")
    found = cli("queues", "list", "--json").json[0]
    assert (found["queue"], found["ready"], found["reason"], found["outlook"]) == (
        "mail",
        1,
        "the server is down",
        "paused",
    )
    assert cli("queues", "resume", "mail", "--json").json == {"queue": "mail", "paused": False, "changed": True}
    assert "was not paused" in cli("queues", "resume", "mail").err
    assert cli("queues", "list").cells[0][-1] == "-"


def test_a_queue_that_nothing_is_known_of_is_paused_only_if_it_is_meant(cli, sql):
    sql.enqueue("SEND", "mail")
    done = cli("queues", "pause", "mial", code=1)
    assert (
        "error: queue 'mial' unknown\nhint: did you mean 'mail'? known: mail; --anyway pauses it nevertheless"
        in done.err
    )
    assert sql("select count(*) from queues") == [(0,)]
    cli("queues", "pause", "later", "--anyway")
    assert sql("select queue from queues") == [("later",)]
    assert "queue 'nowhere' unknown" in cli("queues", "resume", "nowhere", code=1).err


def test_workers_are_listed_while_they_live_and_all_with_all(cli, sql):
    done = cli("workers", "list")
    assert (done.out, "no worker lives" in done.err) == ("", True)
    sql("select start_worker('w1', 'host1', 4711, '{mail}', '{SEND}', '{10}', 8)")
    sql("select start_worker('w2')")
    sql("select stop_worker('w2')")
    sql.enqueue()
    sql.claim()
    (row,) = cli("workers", "list").cells
    assert (row[:6], row[7]) == (["w1", "host1", "4711", "1", "8", "mail"], "live")
    assert {row[0]: row[7] for row in cli("workers", "list", "--all").cells} == {"w1": "live", "w2": "stopped"}
    assert cli("workers", "list", "--json").json[0]["startedAt"]


def test_limits_are_set_listed_and_cleared(cli, sql):
    assert "there are no limits" in cli("limits", "list").err
    sql.enqueue("SEND", "mail")
    cli("limits", "set", "queue", "mail", "--max", "5")
    cli("limits", "set", "global", "--max", "100")
    assert [row[:4] for row in cli("limits", "list").cells] == [
        ["global", "-", "100", "0"],
        ["queue", "mail", "5", "0"],
    ]
    assert cli("limits", "list", "--json").json[1]["maxRunning"] == 5
    assert "queue 'mial' unknown" in cli("limits", "set", "queue", "mial", "--max", "1", code=1).err
    cli("limits", "set", "kind", "LATER", "--max", "1", "--anyway")
    assert cli("limits", "clear", "global", "--json").json == {"scope": "global", "name": "", "cleared": True}
    done = cli("limits", "clear", "queue", "mial", code=1)
    assert "limit 'queue mial' unknown" in done.err
    assert "known: kind LATER, queue mail" in done.err


def test_errors_come_in_groups_and_stats_in_figures(cli, sql):
    assert "nothing has failed lately" in cli("errors").err
    first, last = sql.dead("SEND"), sql.dead("SEND")
    sql.dead("REPORT", "reports", error_class="Other")
    report, send = cli("errors").cells
    assert report[:4] == ["REPORT", "Other", "1", "1"]
    assert (send[:4], send[5], send[6]) == (["SEND", "Boom", "2", "2"], last, "it broke")
    (only,) = cli("errors", "--kind", "SEND", "--json").json
    assert (only["jobType"], only["errorClass"], only["attempts"], only["lastJob"]) == ("SEND", "Boom", 2, last)
    assert "kind 'SENT' unknown" in cli("errors", "-k", "SENT", code=1).err
    assert ["dead", "3"] in cli("stats").cells
    assert cli("stats", "--json").json["figures"]["dead"] == {"value": 3, "capped": False}
    assert first


def test_verify_says_whether_all_laws_hold_and_ends_with_1_if_not(cli, sql):
    done = cli("verify")
    assert {"lost jobs", "double owners"} <= {row[0] for row in done.cells}
    assert {row[1] for row in done.cells} == {"ok"}
    assert all(law["ok"] and law["checkedAt"] for law in cli("verify", "--json").json)
    sql("insert into attempts values (gen_random_uuid(), 1, 'w', 'failed', now(), now())")
    done = cli("verify", code=1)
    assert ["lost jobs", "BROKEN", "1"] in [row[:3] for row in done.cells]
    assert "1 law of" in done.err
    assert not next(law for law in cli("verify", "--json", code=1).json if law["name"] == "lost_jobs")["ok"]


def test_prune_shows_what_would_go_asks_and_removes_it(cli, sql):
    old = [sql.dead() for _ in range(3)]
    fresh = sql.enqueue("SEND", "waiting")
    sql("update jobs set finished_at = now() - interval '40 days' where state = 'dead'")
    assert "would remove 0 jobs" in cli("prune", "--older-than", "30d", "--dry-run").err, "success alone, unless asked"
    arguments = ("prune", "--older-than", "30d", "--state", "dead")
    done = cli(*arguments, "--dry-run")
    assert done.cells == [["SEND", "dead", "3"]]
    assert "would remove 3 jobs; nothing was removed" in done.err
    assert "add --yes" in cli(*arguments, code=2).err
    assert sql("select count(*) from jobs") == [(4,)]
    found = cli(*arguments, "--max", "2", "--yes", "--json").json
    assert (found["jobs"], found["capped"]) == ([{"jobType": "SEND", "state": "dead", "jobs": 2}], True)
    assert "removed 1 job" in cli(*arguments, "--workers", "--yes").err
    assert [str(job) for (job,) in sql("select id from jobs")] == [fresh]
    assert old


def test_a_worker_that_may_be_alive_is_not_pruned_and_the_error_says_so(cli):
    refused = cli("prune", "--workers", "--older-than", "1s", code=2).err
    assert "error: older_than 00:00:01: a worker that was seen within the last minute may be alive\n" in refused


def test_prune_goes_on_in_batches_until_nothing_is_left(cli, sql):
    sql("select enqueue('OLD') from generate_series(1, 2500)")
    sql("select id from claim('w1', count => 2500)")
    sql("select complete('w1', array_agg(id), array_agg(attempt)) from jobs")
    sql("update jobs set finished_at = now() - interval '2 hours'")
    assert "removed 2,500 jobs" in cli("prune", "--older-than", "1h", "--yes").err
    assert sql("select count(*) from jobs") == [(0,)]


def test_in_a_terminal_prune_asks(dsn, sql):
    sql.dead()
    with terminal("prune", "--older-than", "0s", "--state", "dead", LEASEHOLD_DSN=dsn) as screen:
        screen.expect("remove 1 job permanently? [y/N]")
        screen.press("n\n")
        assert screen.end() == 1
        assert "nothing was removed" in screen.text
    assert sql("select count(*) from jobs") == [(1,)]


def test_init_writes_tasks_that_can_be_loaded_and_never_overwrites(
    bare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    done = bare("init")
    assert (done.code, done.out) == (0, "tasks.py\n")
    assert "leasehold dev tasks:app" in done.err
    text = Path("tasks.py").read_text()
    ast.parse(text)
    again = bare("init")
    assert (again.code, again.out) == (2, "")
    assert "tasks.py exists already" in again.err
    assert Path("tasks.py").read_text() == text
    assert bare("init", "mytasks.py", "--json").json == {"file": "mytasks.py", "app": "mytasks:app"}
    assert "is not the name of a Python module" in bare("init", "my-tasks.py").err
    assert bare("init", "nowhere/tasks.py").code == 2
    code = "import mytasks; print(sorted(mytasks.app.tasks))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert loaded.stdout == "['COUNT', 'GREET', 'HEARTBEAT']\n"


def test_on_a_terminal_lists_are_tables_and_between_pipes_lines(dsn, sql):
    job = sql.enqueue("SEND", "mail")
    with terminal("jobs", "list", LEASEHOLD_DSN=dsn, columns=160) as screen:
        assert screen.end() == 0
        heading, line, *_ = screen.text.splitlines()
        assert heading.split()[:4] == ["id", "kind", "queue", "state"]
        assert line.startswith(job)
    assert leasehold("jobs", "list", LEASEHOLD_DSN=dsn).stdout.startswith(f"{job}\tSEND\tmail\tqueued\t0/40\t")


def test_on_a_narrow_terminal_ids_stay_whole_and_what_is_left_out_is_said(dsn, sql):
    job = sql.enqueue("SEND_A_LONG_CONFIRMATION", "confirmations")
    dead = sql.dead("SEND_A_LONG_CONFIRMATION", "graves", error_class="shop.mail.MailServerBusy")
    for command, absent in ((("jobs", "list"), "updated, created"), (("errors",), "last seen, jobs, message")):
        with terminal(*command, LEASEHOLD_DSN=dsn, columns=80) as screen:
            assert screen.end() == 0
            lines = screen.text.splitlines()
        assert any(dead in line for line in lines), screen.text
        assert command == ("errors",) or any(line.startswith(job) for line in lines)
        assert all(len(line.rstrip()) <= 80 for line in lines)
        assert f"no room for {absent}" in screen.text
    with terminal("errors", LEASEHOLD_DSN=dsn, columns=200) as screen:
        assert screen.end() == 0
        assert "no room" not in screen.text


def test_completion_knows_the_commands():
    shown = leasehold("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "_LEASEHOLD_COMPLETE" in shown.stdout
    done = leasehold(COMP_WORDS="leasehold jo", COMP_CWORD="1", _LEASEHOLD_COMPLETE="complete_bash")
    assert done.stdout.split() == ["jobs"]
