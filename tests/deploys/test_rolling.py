"""A deployment rolls: programs of two releases work on one database while its schema changes under them."""

import shutil
from pathlib import Path

import psycopg
import pytest

from faults.waiting import until
from leasehold.db.migrations.files import Source
from leasehold.db.migrations.migrate import LATEST, Limits, migrate
from tests.deploys.conftest import MIGRATIONS, PASSING, ROOT, Prober, Process, Releases, looking, probing
from tests.timing import FULL, bound

pytestmark = pytest.mark.timeout(300)  # many processes start, on a machine that may be busy

ROWS = 50_000 if FULL else 10_000
MOMENT = 1.0
"""No session waits longer for a lock of a migration."""

DONE_BY = "select count(*) from jobs where state = 'success' and result #>> '{}' like %s"

# What a next release may do: columns, a table, an index, functions with other bodies and with further arguments.
NEXT_MIGRATION = """
alter table jobs add column next_note text;
alter table workers add column next_zone text;
alter table kinds add column next_rank integer not null default 0;
alter table limits add column next_rank integer not null default 0;
alter table queues add column next_rank integer not null default 0;
alter table schedules add column next_rank integer not null default 0;
alter table statistics add column next_rank integer not null default 0;
alter table tokens add column next_rank integer not null default 0;
create table next_things (id bigint primary key);
create index next_finished on attempts (outcome) where outcome = 'cancelled';
"""
NEXT_FUNCTIONS = """
create or replace function complete_v2(
  worker text, ids uuid[], attempts integer[], results jsonb[] default null, claim_ids uuid[] default null,
  note text default null
) returns setof uuid language plpgsql
security definer set search_path from current
as $$
begin
  return query select * from complete_v1(worker, ids, attempts, results, claim_ids);
  update jobs j set next_note = note where j.id = any(ids) and note is not null;
end $$;
"""


def fill(dsn: str) -> None:
    """Give the tables a past, so that a rewrite of one would be felt."""
    with psycopg.connect(dsn, autocommit=True, options="-c search_path=leasehold") as connection:
        connection.execute(
            "insert into jobs (max_attempts, kind, state, attempt, finished_at, finished_by, queue)"
            " select 5, 'past', 'success', 1, now(), 'w', 'past' from generate_series(1, %s)",
            [ROWS],
        )
        connection.execute(
            "insert into attempts (job_id, attempt, worker, outcome, claimed_at, ended_at)"
            " select id, 0, 'w', 'released', now(), now() from jobs where kind = 'past'"
        )


def next_release(place: Path) -> Source:
    """The files of this release and of what may come after it."""
    for file in (ROOT / "leasehold/db/sql").rglob("*.sql"):
        copy = place / file.parent.name / file.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(file.read_text().replace("as $$\n", "as $$\n-- next\n"))
    for file in (ROOT / MIGRATIONS).glob("*.sql"):
        (place / "migrations" / file.name).write_text(file.read_text())
    (place / "migrations" / f"{LATEST + 1:04}_next.sql").write_text(NEXT_MIGRATION)
    (place / "functions" / "next.sql").write_text(NEXT_FUNCTIONS)
    return Source.load(place)


def assert_unmoved(prober: Prober) -> None:
    """No call failed, and none waited longer than a moment."""
    print(f"longest wait {prober.longest * 1000:.0f} ms in {prober.rounds} rounds")
    assert prober.errors == []
    assert prober.rounds > 3
    assert prober.longest < bound(MOMENT), "a migration made a session wait"


def assert_all_well(dsn: str, releases: Releases, producers: list[Process]) -> None:
    """Whatever was acknowledged was done, once; no process logged an error."""
    lines = [line for producer in producers for line in producer.said.splitlines()]
    acknowledged = [line for line in lines if not PASSING.search(line)]
    assert len(acknowledged) > 50
    with looking(dsn) as ask:
        until(lambda: ask("select count(*) from jobs where state <> 'success'") == 0, "every job is done")
        releases.stop()
        assert {process.popen.returncode for process in releases.started} == {0}
        assert ask("select count(*) from jobs where id = any(%s::uuid[])", acknowledged) == len(acknowledged)
        assert ask("select count(*) from jobs where state <> 'success' or (attempt <> 1 and kind <> 'past')") == 0
        assert ask("select count(*) from attempts where outcome <> 'released' or attempt > 0") == 0
    assert [line for process in releases.started for line in process.trouble()] == []


def test_programs_of_this_release_go_on_while_the_next_one_migrates(empty_dsn, releases, tmp_path):
    migrate(empty_dsn)
    fill(empty_dsn)
    releases.worker(ROOT)
    producer = releases.producer(ROOT)
    with looking(empty_dsn) as ask, probing(empty_dsn) as prober:
        until(lambda: ask(DONE_BY, "%") > 50, "jobs flow")
        report = migrate(empty_dsn, source=next_release(tmp_path / "sql"))
        assert report.version == LATEST + 1
        assert len(report.functions) > 20
        assert ask("select array_agg(pg_get_function_arguments(oid)) from pg_proc where proname = 'complete'") == [
            ask("select pg_get_function_arguments('complete_v2'::regproc)")
        ]
        done = ask(DONE_BY, "%")
        until(lambda: ask(DONE_BY, "%") > done + 50, "jobs flow afterwards")
        producer.stop()
    assert_unmoved(prober)
    assert_all_well(empty_dsn, releases, [producer])


def test_workers_of_two_releases_share_the_schema_that_this_one_migrates_under_load(empty_dsn, releases, previous):
    assert releases.migrate(previous).popen.returncode == 0
    fill(empty_dsn)
    old_worker, old_producer = releases.worker(previous), releases.producer(previous)
    with looking(empty_dsn) as ask, probing(empty_dsn) as prober:
        until(lambda: ask(DONE_BY, f"{previous}%") > 50, "jobs flow")
        report = migrate(empty_dsn)
        assert report.before <= report.version == LATEST
        assert report.functions
        new_producer, _, newcomer = releases.producer(ROOT), releases.worker(ROOT), releases.worker(previous)
        # A program of the release before starts once more, and migrates as it always did.
        assert releases.migrate(previous).popen.returncode == 0
        assert ask("select schema_version()") == LATEST
        done = ask(DONE_BY, f"{previous}%")
        until(lambda: ask(DONE_BY, f"{previous}%") > done + 30, "the old worker goes on")
        until(lambda: ask(DONE_BY, f"{ROOT}%") > 30, "the new worker works beside it")
        until(lambda: ask("select count(*) from workers where pid = %s", newcomer.popen.pid), "old workers still start")
        assert old_worker.stop() == 0
        done = ask(DONE_BY, f"{previous}%")
        until(lambda: ask(DONE_BY, f"{previous}%") > done + 10, "and work")
        for producer in (old_producer, new_producer):
            producer.stop()
    assert_unmoved(prober)
    assert_all_well(empty_dsn, releases, [old_producer, new_producer])


def test_a_worker_refuses_a_schema_that_is_older_than_itself(empty_dsn, releases, tmp_path):
    migrate(empty_dsn)
    later = tmp_path / "later"
    shutil.copytree(ROOT / "leasehold", later / "leasehold", ignore=shutil.ignore_patterns("__pycache__"))
    (later / MIGRATIONS / f"{LATEST + 1:04}_later.sql").write_text("create table later ();")
    worker = releases.worker(later)
    assert worker.wait() == 4
    assert f"migration {LATEST} of {LATEST + 1}" in worker.said
    assert "leasehold migrate" in worker.said
    assert "Traceback" not in worker.said


def test_a_schema_that_was_migrated_has_the_functions_of_a_new_one_and_no_second_form_of_any(
    empty_dsn, dsn, releases, previous
):
    assert releases.migrate(previous).popen.returncode == 0
    migrate(empty_dsn)
    query = (
        "select jsonb_object_agg(p.oid::regprocedure, md5(p.prosrc))"
        " from pg_proc p where p.pronamespace = %s::regnamespace"
    )
    with looking(empty_dsn) as migrated, looking(dsn) as fresh:
        old, new = migrated(query, "leasehold"), fresh(query, "leasehold")
        assert {name: old.get(name) for name in new} == new
        # Two forms of one name make calls ambiguous, for programs of both releases.
        names = [name.partition("(")[0] for name in new]
        left = {name.partition("(")[0] for name in old.keys() - new.keys()}
        assert left & set(names) == set()


def test_the_prober_catches_a_release_that_holds_its_locks_and_gives_a_function_a_second_form(empty_dsn, tmp_path):
    migrate(empty_dsn)
    next_release(tmp_path)
    migration = tmp_path / "migrations" / f"{LATEST + 1:04}_next.sql"
    migration.write_text("lock table jobs in access exclusive mode; select pg_sleep(1.5);")
    (tmp_path / "functions" / "next.sql").write_text(NEXT_FUNCTIONS.replace("complete_v2(", "complete_v1("))
    with probing(empty_dsn) as prober:
        until(lambda: prober.rounds > 3, "it probes")
        migrate(empty_dsn, source=Source.load(tmp_path))
        until(lambda: prober.errors, "a call is ambiguous")
    assert prober.longest > MOMENT
    assert "is not unique" in prober.errors[0]


def test_a_migration_that_cannot_get_its_locks_keeps_no_session_waiting_for_long(empty_dsn, tmp_path):
    migrate(empty_dsn)
    patient = Limits(lock_timeout=0.3, attempts=50, first_pause=0.001)
    with looking(empty_dsn) as ask, psycopg.connect(empty_dsn) as reader, probing(empty_dsn) as prober:
        reader.execute("set idle_in_transaction_session_timeout = '2s'")
        reader.commit()
        reader.execute("select count(*) from leasehold.jobs")
        report = migrate(empty_dsn, source=next_release(tmp_path / "sql"), limits=patient)
        assert report.version == LATEST + 1 == ask("select schema_version()")
        with pytest.raises(psycopg.Error):
            reader.execute("select 1")
    assert_unmoved(prober)
