"""A way back: the functions of the release before are kept, restored by one command, and its programs run on them."""

import json
import subprocess
import sys
import time

import psycopg
import pytest

from faults.waiting import until
from leasehold.db.migrations.migrate import LATEST, Limits, back, migrate, plan, way_back
from leasehold.errors import LeaseholdError
from tests.deploys.conftest import ROOT, looking, probing
from tests.deploys.test_rolling import DONE_BY, next_release
from tests.timing import bound

pytestmark = pytest.mark.timeout(300)  # many processes start, on a machine that may be busy

FUNCTIONS = "select jsonb_object_agg(p.oid::regprocedure, md5(pg_get_functiondef(p.oid))) from pg_proc p where {}"
# Without parentheses: the server prints a condition with more of them when it has read it twice.
TRIGGER = "select translate(pg_get_triggerdef(oid), '()', '') from pg_trigger where tgname = 'jobs_transition'"
IN_SCHEMA = "p.pronamespace = 'leasehold'::regnamespace and p.prokind = 'f'"
ACCESS = (
    "select jsonb_agg(p.oid::regprocedure || ' ' || a.grantee::text order by 1) from pg_proc p, aclexplode(p.proacl) a"
)


def test_the_release_before_gets_its_functions_back_and_works_on_the_new_tables(
    empty_dsn, releases, previous, tmp_path
):
    source = next_release(tmp_path / "sql")  # of this release and more: no function is as it was before
    assert releases.migrate(previous).popen.returncode == 0
    with looking(empty_dsn) as ask:
        before = ask(FUNCTIONS.format(IN_SCHEMA))
        migrate(empty_dsn, source=source)
        assert ask(FUNCTIONS.format(IN_SCHEMA)) != before
        command = [sys.executable, "-m", "leasehold", "migrate", "--back", "--json", "--dsn", empty_dsn]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=True)
        assert json.loads(done.stdout)["functions"] == len(before)
        assert "are restored; the tables stay as they are" in done.stderr
        after = ask(FUNCTIONS.format(IN_SCHEMA))
        assert {name: after.get(name) for name in before} == before
        assert ask("select schema_version()") == LATEST + 1
        releases.worker(previous)
        producer = releases.producer(previous)
        until(lambda: ask(DONE_BY, f"{previous}%") > 20, "the old worker does the old producer's jobs")
        producer.stop()
        # Its own migrate leaves things as they are, and the release after can come again.
        assert releases.migrate(previous).popen.returncode == 0
        after = ask(FUNCTIONS.format(IN_SCHEMA))
        assert {name: after.get(name) for name in before} == before
        assert migrate(empty_dsn, source=source).functions
        until(lambda: ask("select count(*) from jobs where state <> 'success'") == 0, "every job is done")


def test_going_back_restores_grants_triggers_and_single_forms_and_forward_again_all_of_the_next(dsn, tmp_path):
    with looking(dsn) as ask:
        before, access = ask(FUNCTIONS.format(IN_SCHEMA)), ask(f"{ACCESS} where {IN_SCHEMA}")
        source = next_release(tmp_path / "sql")
        (tmp_path / "sql/functions/zzz_next.sql").write_text(
            "revoke execute on function claim_v1 from leasehold_worker;"
            "create or replace trigger jobs_transition after update of state on jobs for each row"
            " when (old.state <> new.state) execute function refuse_transition();"
        )
        (tmp_path / "sql/functions/status_next.sql").write_text(
            "create or replace function status_v2(job_id uuid) returns table (id uuid, more text) language sql stable"
            " as $$ select j.id, 'more' from jobs j where j.id = job_id $$;"  # another result for the same arguments
        )
        source = type(source).load(tmp_path / "sql")
        trigger = ask(TRIGGER)
        migrate(dsn, source=source)
        forward = ask(FUNCTIONS.format(IN_SCHEMA))
        assert way_back(dsn).functions == len(before)
        back(dsn)
        after = ask(FUNCTIONS.format(IN_SCHEMA))
        assert {name: after.get(name) for name in before} == before
        assert {name.partition("(")[0] for name in after.keys() - before.keys()} == {"complete_v2", "status_v2"}
        assert set(access) <= set(ask(f"{ACCESS} where {IN_SCHEMA}"))
        assert ask(TRIGGER) == trigger
        assert ask("select schema_version()") == LATEST + 1
        assert plan(dsn).superseded  # this release, met by its own functions on the tables of the next
        migrate(dsn, source=source)
        assert ask(FUNCTIONS.format(IN_SCHEMA)) == forward


def test_without_anything_kept_the_command_says_so(empty_dsn):
    migrate(empty_dsn)
    with pytest.raises(LeaseholdError, match="keeps no functions of an earlier release"):
        back(empty_dsn)


def test_a_migration_that_changes_no_trigger_waits_for_no_open_transaction(dsn):
    with psycopg.connect(dsn, autocommit=True) as session, psycopg.connect(dsn) as shop:
        session.execute("select leasehold.history(true)")
        shop.execute("select leasehold.enqueue('probe', queue => 'open')")  # and writes an event
        session.execute("update leasehold.function_files set checksum = 'changed'")
        report = migrate(dsn, limits=Limits(attempts=1))
        assert {"guard.sql", "history.sql", "zz_triggers.sql"} <= set(report.functions)


def test_a_trigger_that_was_changed_by_hand_is_made_again(dsn):
    with looking(dsn) as ask, psycopg.connect(dsn, autocommit=True) as session:
        before = ask(TRIGGER)
        session.execute(
            "create or replace trigger jobs_transition after update of state on leasehold.jobs for each row"
            " when (old.state <> new.state) execute function leasehold.refuse_transition()"
        )
        assert ask(TRIGGER) != before
        session.execute("update leasehold.function_files set checksum = 'changed' where name = 'zz_triggers.sql'")
        migrate(dsn)
        assert ask(TRIGGER) == before


@pytest.mark.parametrize("how", ["disable", "enable replica"])
def test_a_trigger_that_was_disabled_is_enabled_again(dsn, how):
    enabled = "select tgenabled::text from pg_trigger where tgname = 'jobs_transition'"
    with looking(dsn) as ask, psycopg.connect(dsn, autocommit=True) as session:
        session.execute(f"alter table leasehold.jobs {how} trigger jobs_transition")
        assert ask(enabled) != "O"
        session.execute("update leasehold.function_files set checksum = 'changed' where name = 'zz_triggers.sql'")
        migrate(dsn)
        assert ask(enabled) == "O"


def test_an_open_transaction_holds_up_a_migration_and_no_one_else(dsn, tmp_path):
    source = next_release(tmp_path / "sql")
    triggers = tmp_path / "sql/functions/zz_triggers.sql"
    triggers.write_text(triggers.read_text().replace("('dead', 'queued')", "('dead', 'queued'), ('dead', 'created')"))
    source = type(source).load(tmp_path / "sql")
    with psycopg.connect(dsn, application_name="the shop") as shop, probing(dsn) as prober:
        shop.execute("select leasehold.enqueue('probe', queue => 'open')")
        with pytest.raises(LeaseholdError) as given_up:
            migrate(dsn, source=source, limits=Limits(patience=3))
        assert f"held by pid {shop.info.backend_pid} (the shop, idle in transaction, its transaction is " in str(
            given_up.value
        )
        assert "leasehold.enqueue" in str(given_up.value)
        rounds = prober.rounds
        until(lambda: prober.rounds > rounds + 3, "the others go on")
        ends = time.monotonic() + 1
        until(lambda: time.monotonic() > ends, "a second")
    assert prober.errors == []
    assert prober.longest < bound(1.0)
    assert migrate(dsn, source=source).version == LATEST + 1
