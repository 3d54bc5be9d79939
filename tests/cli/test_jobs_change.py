"""`leasehold jobs retry|cancel`: by id, or by filter with a look first and a yes."""

from uuid import uuid4

import psycopg

from tests.cli.terminal import terminal


def test_ids_are_changed_one_by_one_and_what_cannot_be_is_said(cli, sql):
    dead, queued, unknown = sql.dead(), sql.enqueue("SEND", "other"), str(uuid4())
    done = cli("jobs", "retry", dead, queued, unknown, dead, code=1)
    assert done.cells == [[dead, "retried"], [queued, "is not dead"], [unknown, "unknown"]]
    assert sql.state(dead) == "queued"
    done = cli("jobs", "cancel", queued, "--why", "no longer wanted", "--json")
    assert done.json == [{"jobId": queued, "changed": True, "outcome": "cancelled"}]
    assert sql("select reason, reason_detail from jobs where id = %s", queued) == [("cancelled", "no longer wanted")]
    assert cli("jobs", "cancel", queued).cells == [[queued, "cancelled"]], (
        "once more changes nothing, and is no failure"
    )


def test_a_dry_run_counts_and_changes_nothing(cli, sql):
    jobs = [sql.dead() for _ in range(3)]
    sql.dead("OTHER")
    done = cli("jobs", "retry", "--kind", "SEND", "--dry-run")
    assert (done.out, done.err) == ("3\n", "would retry 3 jobs; nothing was changed\n")
    found = cli("jobs", "cancel", "--queue", "mail", "--dry-run", "--json").json
    assert found == {"matched": 0, "changed": 0, "capped": False, "dryRun": True}
    assert {sql.state(job) for job in jobs} == {"dead"}


def test_between_pipes_a_filter_needs_a_yes(cli, sql):
    job = sql.dead()
    done = cli("jobs", "retry", "--error", "Boom", code=2)
    assert done.out == ""
    assert "error: this would retry 1 job\nhint: add --yes to do it, or --dry-run to count them\n" in done.err
    assert sql.state(job) == "dead"
    assert cli("jobs", "retry", "--error", "Boom", "--yes").out == "1\n"
    assert sql.state(job) == "queued"


def test_a_filter_changes_all_that_fit_in_batches_and_no_more_than_the_maximum(cli, sql):
    sql("select enqueue('BULK', queue => 'bulk') from generate_series(1, 1200)")
    sql("select enqueue('OTHER', queue => 'bulk')")
    found = cli("jobs", "cancel", "--kind", "BULK", "--max", "700", "--yes", "--json").json
    assert (found["changed"], found["capped"]) == (700, True)
    found = cli("jobs", "cancel", "--kind", "BULK", "--yes", "--why", "enough", "--json").json
    assert found == {"matched": 500, "changed": 500, "capped": False, "dryRun": False}
    assert sql("select state, count(*) from jobs group by state order by 1") == [("queued", 1), ("dead", 1200)]
    done = cli("jobs", "cancel", "--kind", "BULK", "--yes")
    assert (done.out, done.err) == ("0\n", "cancelled 0 jobs\n")


def test_jobs_behind_very_many_others_are_found(cli, sql):
    sql(
        "insert into jobs (kind, max_attempts, run_at) select 'FAR', 5, now() + interval '1 hour'"
        " from generate_series(1, 50100)"
    )
    sql("select enqueue('MINE', run_after => '2 hours') from generate_series(1, 3)")
    done = cli("jobs", "cancel", "--kind", "MINE", "--dry-run")
    assert (done.out, done.err) == ("3\n", "would cancel 3 jobs; nothing was changed\n")
    done = cli("jobs", "cancel", "--kind", "MINE", "--yes", "--json").json
    assert done == {"matched": 3, "changed": 3, "capped": False, "dryRun": False}
    assert sql("select state, kind from jobs group by state, kind order by 1") == [("created", "FAR"), ("dead", "MINE")]


def test_what_others_are_writing_is_left_and_the_answer_says_so(cli, sql, dsn):
    job = sql.enqueue("SEND", "mail")
    with psycopg.connect(dsn) as other:
        other.execute("select from leasehold.jobs where id = %s for update", [job])
        done = cli("jobs", "cancel", "--kind", "SEND", "--yes")
    assert (done.out, done.err) == ("0\n", "cancelled 0 jobs; there may be more that fit\n")


def test_in_a_terminal_it_asks_and_no_means_no(dsn, sql):
    job = sql.dead()
    with terminal("jobs", "retry", "--queue", "mail", LEASEHOLD_DSN=dsn) as screen:
        screen.expect("retry 1 job? [y/N]")
        screen.press("n\n")
        assert screen.end() == 1
        assert "nothing was changed" in screen.text
    assert sql.state(job) == "dead"
    with terminal("jobs", "retry", "--queue", "mail", LEASEHOLD_DSN=dsn) as screen:
        screen.expect("[y/N]")
        screen.press("y\n")
        assert screen.end() == 0
        assert "retried 1 job" in screen.text
    assert sql.state(job) == "queued"


def test_ctrl_c_at_the_question_changes_nothing(dsn, sql):
    job = sql.dead()
    with terminal("jobs", "retry", "--queue", "mail", LEASEHOLD_DSN=dsn) as screen:
        screen.expect("[y/N]")
        screen.interrupt()
        assert screen.end() in (1, 130)
        assert "Traceback" not in screen.text
    assert sql.state(job) == "dead"


def test_metadata_must_all_hold_and_any_other_filter_is_given_once(cli, sql):
    for metadata in ('{"a": "b", "c": "d"}', '{"a": "b"}', '{"c": "d"}'):
        sql("select enqueue('SEND', queue => 'mail', metadata => %s)", metadata)
    for pairs in (["a=b", "c=d"], ["c=d", "a=b"]):
        given = [word for pair in pairs for word in ("--metadata", pair)]
        assert cli("jobs", "cancel", *given, "--dry-run").out == "1\n"
    for words, told in (
        (["--kind", "SEND", "--kind", "OTHER"], "--kind is given 2 times: 'SEND', 'OTHER'"),
        (["--error", "A", "--error", "B"], "--error is given 2 times"),
        (["--since", "1h", "--since", "2h"], "--since is given 2 times"),
        (["--metadata", "a=b", "--metadata", "a=c"], "--metadata gives 'a' two values"),
        (["--metadata", "a"], "--metadata 'a' is not key=value"),
    ):
        assert told in cli("jobs", "cancel", *words, "--yes", code=2).err
        assert told in cli("jobs", "list", *words, code=2).err
    assert sql("select count(*) from jobs where state = 'dead'") == [(0,)]
