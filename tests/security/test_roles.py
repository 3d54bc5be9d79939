"""Laws of who may do what: everything in the schema is in the matrix below, and no role may do more than it says."""

import re
from collections.abc import Iterable
from pathlib import Path

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege

from tests.security.conftest import ROLES, Login

# Each name stands for itself and its versions. Written by hand, apart from zz_grants.sql, which it checks.
MATRIX = {
    "enqueue": {"producer", "api"},
    "enqueue_many": {"producer", "api"},
    "enqueue_batch": {"producer", "api"},
    "submit": {"producer", "api"},
    "submit_many": {"producer", "api"},
    "submit_each": {"producer", "api"},
    "accept_many": {"producer", "api"},
    "accept_each": {"producer", "api"},
    "statuses": {"producer", "api"},
    "accept": {"producer", "operator", "api"},
    "notify": {"producer", "worker", "operator", "api"},
    "status": {"producer", "worker", "operator", "api"},
    "lease_seconds": {"producer", "worker", "operator", "viewer", "api"},
    "claim": {"worker"},
    "claim_job": {"worker"},
    "heartbeat": {"worker"},
    "renew": {"worker"},
    "renew_each": {"worker"},
    "claim_each": {"worker"},
    "report_each": {"worker"},
    "owned": {"worker"},
    "complete": {"worker"},
    "complete_in": {"producer", "worker"},
    "fail": {"worker"},
    "fail_many": {"worker"},
    "release": {"worker"},
    "add_logs": {"worker"},
    "start_worker": {"worker"},
    "stop_worker": {"worker"},
    "sweep": {"worker", "operator"},
    "promote": {"worker", "operator"},
    "upkeep": {"worker"},
    "next_due": {"worker", "operator"},
    "declare_kinds": {"worker", "operator"},
    "declare_tasks": {"worker", "operator"},
    "cancel": {"producer", "operator", "api"},
    "retry": {"operator", "api"},
    "logs": {"operator", "api"},
    "set_limit": {"operator", "api"},
    "drop_limit": {"operator", "api"},
    "counts": {"operator", "viewer", "api"},
    "explain": {"operator", "viewer", "api"},
    "pause": {"operator", "api"},
    "resume": {"operator", "api"},
    "run_now": {"operator", "api"},
    "retry_many": {"operator", "api"},
    "cancel_many": {"operator", "api"},
    "list_jobs": {"operator", "api"},
    "job_detail": {"operator", "api"},
    "errors": {"operator", "api"},
    "queue_list": {"operator", "viewer", "api"},
    "worker_list": {"operator", "viewer", "api"},
    "stats": {"operator", "viewer", "api"},
    "verify": {"operator", "viewer", "api"},
    "events": {"operator", "viewer", "api"},
    "history_enabled": {"operator", "viewer", "api"},
    "history": {"operator"},
    "prune": {"operator"},
    "prune_workers": {"operator"},
    "names": {"operator", "viewer", "api"},
    "doctor": {"operator"},
    "statistics_add": {"worker"},
    "statistics": {"operator", "viewer", "api"},
    "flow": {"operator", "viewer", "api"},
    "rates": {"operator", "viewer", "api"},
    "system": {"operator", "viewer", "api"},
    "holders": {"operator", "api"},
    "canary_start": {"operator", "api"},
    "canary_stop": {"operator", "api"},
    "canary_list": {"operator", "viewer", "api"},
    "create_token": {"operator", "api"},
    "revoke_token": {"operator", "api"},
    "token": {"api"},
    "token_list": {"operator", "api"},
    "tokens_exist": {"api"},
    "schedule_due": {"worker"},
    "schedule_claim": {"worker"},
    "schedule_fire": {"worker"},
    "schedule_problem": {"worker"},
    "schedule_sync": {"worker"},
    "schedule_put": {"operator", "api"},
    "schedule_enable": {"operator", "api"},
    "schedule_disable": {"operator", "api"},
    "schedule_run_now": {"operator", "api"},
    "schedule_remove": {"operator", "api"},
    "schedule_list": {"operator", "api"},
}


def names_of(rows: Iterable[tuple[str, ...]]) -> set[str]:
    """The functions, without the marks of their versions."""
    return {re.sub(r"_v[0-9]+$", "", name) for name, *_ in rows}


EVERYBODY = {"schema_version", "schema_supports_from"}
TABLES = {
    "canaries", "canary_jobs", "flow", "statistics",
    "jobs", "attempts", "events", "job_logs", "kinds", "limits", "limits_to_recheck", "queues", "schedules", "tokens",
    "unpark_later", "workers", "migrations", "function_files", "function_sets",
}  # fmt: skip
"""Granted to no role."""

SEQUENCES = {"events_seq_seq", "function_sets_number_seq", "limits_to_recheck_seq_seq", "unpark_later_seq_seq"}

VIEWS = {
    "job_overview": [
        "id", "kind", "queue", "state", "status", "priority", "attempt", "retry_count", "max_attempts", "is_exclusive",
        "parked", "accepted", "lease_owner", "lease_expires_at", "reason", "progress", "run_at", "claimed_at",
        "created_at", "updated_at", "finished_at",
    ],
    "attempt_overview": ["job_id", "attempt", "worker", "outcome", "error_class", "claimed_at", "ended_at"],
    "worker_overview": [
        "id", "host", "pid", "queues", "kinds", "slots", "started_at", "seen_at", "stopped_at",
    ],
    "limit_overview": ["scope", "name", "max_running", "updated_at", "running"],
    "schedule_overview": [
        "key", "kind", "queue", "priority", "max_attempts", "every", "cron", "time_zone", "starts_at", "ends_at",
        "jitter", "missed", "grace", "max_missed", "overlap", "enabled", "is_declared", "next_run_at", "over",
        "locked_by", "locked_until", "last_run_at", "last_job", "fired", "missed_runs", "overlapped", "updated_at",
    ],
    "token_overview": [
        "id", "name", "scopes", "queues", "kinds", "rate", "created_at", "expires_at", "revoked_at", "live",
    ],
}  # fmt: skip
"""Some roles' to read. No payload, result, error text, keys; no hash of a secret."""

READERS = {key: {"viewer", "operator", "api"} for key in VIEWS} | {"token_overview": {"operator", "api"}}

NO_ID = "'00000000-0000-0000-0000-000000000000'::uuid"
NONE = "'{}'::uuid[], '{}'::integer[]"
CALLS = {
    "statistics_add": "'w', 1, 5, '[]'",
    "statistics": "now() - interval '1 hour'",
    "flow": "now() - interval '1 hour'",
    "canary_start": "'no such kind'",
    "canary_stop": NO_ID,
    "enqueue": "'k'",
    "enqueue_many": "'[]'",
    "enqueue_batch": "'{\"kind\": \"k\"}', '[]'",
    "submit": "'k'",
    "submit_many": "'[]'",
    "submit_each": "'[]'",
    "accept_many": "'{}'",
    "accept_each": "'{}'",
    "statuses": "'{}'",
    "accept": NO_ID,
    "notify": "'{default}'",
    "status": NO_ID,
    "lease_seconds": "'k'",
    "claim": "'w'",
    "claim_job": f"{NO_ID}, 'w'",
    "heartbeat": f"'w', {NONE}",
    "renew": f"'w', {NONE}",
    "renew_each": f"'w', {NONE}",
    "report_each": f"'w', {NONE}, '{{}}', '{{}}'",
    "claim_each": "'w'",
    "owned": "'w'",
    "complete": f"'w', {NONE}",
    "fail": f"'w', {NO_ID}, 1",
    "fail_many": "'w', '[]'",
    "release": f"'w', {NONE}",
    "add_logs": f"'w', {NONE}, '{{}}', '{{}}'",
    "start_worker": "'w'",
    "stop_worker": "'w'",
    "declare_kinds": "'{k}', '{5}'",
    "declare_tasks": "'[]'",
    "complete_in": f"'w', {NO_ID}, 1, {NO_ID}",
    "cancel": NO_ID,
    "retry": NO_ID,
    "logs": NO_ID,
    "explain": NO_ID,
    "set_limit": "'queue', 'q', 1",
    "drop_limit": "'queue', 'q'",
    "pause": "'q'",
    "resume": "'q'",
    "run_now": NO_ID,
    "job_detail": NO_ID,
    "history": "false",
    "prune": "'1 day'",
    "create_token": f"{NO_ID}, 'n', sha256(''), '{{read}}'",
    "revoke_token": NO_ID,
    "token": NO_ID,
    "schedule_put": "'s', 'k', every => '1 hour'",
    "schedule_enable": "'x'",
    "schedule_disable": "'x'",
    "schedule_run_now": "'x'",
    "schedule_remove": "'x'",
    "schedule_claim": "'x', 'w'",
    "schedule_fire": f"'x', 'w', {NO_ID}, null, '{{}}', null",
    "schedule_problem": f"'x', 'w', {NO_ID}, 'p'",
    "schedule_sync": "'[]'",
}
HELPER_CALLS = [
    "refuse('LH001', 'illegal_transition', 'x')",
    "clock()",
    "announce('{default}')",
    f"expire(array[{NO_ID}])",
    "unpark('{k}', true)",
    "verdict('failed', false, 1, 1)",
    "lock_runnable('{}', 1, false, false)",
    f"settle_exclusive(array[{NO_ID}], now(), '{{}}')",
    f"take(array[{NO_ID}], '{{k}}', 'w', {NO_ID})",
    "begin_claim('w', null)",
    "schedule_of('s', '{}')",
    "plan_schedule_anew('s', now())",
]
IN_SCHEMA = "pronamespace = 'leasehold'::regnamespace"


def test_every_version_is_in_the_matrix(owner: psycopg.Connection) -> None:
    """What has no version is internal: no role may call it, as the test below finds."""
    rows = owner.execute(f"select proname from pg_proc where {IN_SCHEMA} and proname ~ '_v[0-9]+$'").fetchall()
    assert names_of(rows) == MATRIX.keys(), "give each new function its place in the matrix"


def test_every_table_view_and_sequence_is_in_the_matrix(owner: psycopg.Connection) -> None:
    rows = owner.execute(
        "select relname from pg_class where relnamespace = 'leasehold'::regnamespace"
        " and relkind not in ('i', 'I', 't', 'c')"
    ).fetchall()
    assert sorted(name for (name,) in rows) == sorted(TABLES | VIEWS.keys() | SEQUENCES)


@pytest.mark.parametrize("role", ROLES)
def test_each_role_may_execute_what_the_matrix_says_and_nothing_else(
    owner: psycopg.Connection, names: dict[str, str], role: str
) -> None:
    query = f"select proname, has_function_privilege(%s, oid, 'execute') from pg_proc where {IN_SCHEMA}"
    rows = owner.execute(query, [names[role]]).fetchall()
    mine = {name for name, roles in MATRIX.items() if role in roles} | EVERYBODY
    assert names_of(row for row in rows if row[1]) == mine
    assert names_of(row for row in rows if not row[1]) & mine == set(), "of a version, too"


@pytest.mark.parametrize("role", [role for role in ROLES if role != "nobody"])
def test_the_documentation_lists_what_each_role_may_call(
    owner: psycopg.Connection, names: dict[str, str], role: str
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "roles.md").read_text(encoding="utf-8")
    [line] = re.findall(rf"^\| `leasehold_{role}` \| (.*) \|$", page.partition("may call |")[2], re.MULTILINE)
    query = f"select proname from pg_proc where {IN_SCHEMA} and has_function_privilege(%s, oid, 'execute')"
    granted = names_of(owner.execute(query, [names[role]]).fetchall()) - EVERYBODY
    views = {view for view in VIEWS if role in READERS[view]}
    assert set(re.findall(r"`([a-z_]+)`", line)) == granted | views


@pytest.mark.parametrize("role", ROLES)
def test_tables_are_granted_to_no_role_and_the_overviews_are_only_read(
    owner: psycopg.Connection, names: dict[str, str], role: str
) -> None:
    rows = owner.execute(
        "select c.relname, p.privilege from pg_class c, unnest(array['select', 'insert', 'update', 'delete',"
        " 'truncate', 'references', 'trigger']) p(privilege) where c.relnamespace = 'leasehold'::regnamespace"
        " and c.relkind not in ('i', 'I', 't', 'c') and (has_table_privilege(%(role)s, c.oid, p.privilege) or"
        " p.privilege in ('select', 'insert', 'update', 'references')"
        " and has_any_column_privilege(%(role)s, c.oid, p.privilege))",
        {"role": names[role]},
    ).fetchall()
    assert set(rows) == {(view, "select") for view in VIEWS if role in READERS[view]}


@pytest.mark.parametrize("role", ROLES)
def test_no_role_may_create_in_the_schema_and_strangers_may_not_even_use_it(
    owner: psycopg.Connection, names: dict[str, str], role: str
) -> None:
    query = "select p from unnest(array['usage', 'create']) p where has_schema_privilege(%s, 'leasehold', p)"
    assert owner.execute(query, [names[role]]).fetchall() == ([] if role == "nobody" else [("usage",)])


@pytest.mark.parametrize("role", ROLES)
def test_calls_are_taken_or_refused_as_the_matrix_says(login: Login, role: str) -> None:
    with login(role) as connection:
        for function in connection.execute(f"select proname from pg_proc where {IN_SCHEMA} order by 1").fetchall():
            (name,) = names_of([function])
            if name in MATRIX:
                call = f"select * from leasehold.{function[0]}({CALLS.get(name, '')})"
                # LH002: there is no such job; who gets that far was allowed to ask.
                expected = (None, "LH002") if role in MATRIX[name] else ("42501",)
                assert sqlstate_of(connection, call) in expected, f"{role} calls {function[0]}"


@pytest.mark.parametrize("role", ROLES)
def test_helpers_and_tables_are_refused_to_every_role(login: Login, role: str) -> None:
    with login(role) as connection:
        for call in HELPER_CALLS:
            assert sqlstate_of(connection, f"select leasehold.{call}") == "42501", call
        for table in TABLES:
            for statement in ("select * from", "delete from", "truncate"):
                assert sqlstate_of(connection, f"{statement} leasehold.{table}") == "42501", f"{statement} {table}"
        for view in VIEWS:
            seen = sqlstate_of(connection, f"select * from leasehold.{view}") is None
            assert seen == (role in READERS[view]), view
            assert sqlstate_of(connection, f"delete from leasehold.{view}") == "42501"


def sqlstate_of(connection: psycopg.Connection, statement: str) -> str | None:
    try:
        connection.execute(statement)
    except psycopg.Error as error:
        return error.sqlstate
    return None


def test_a_producers_login_enqueues_cancels_and_completes_what_its_worker_has_claimed(login: Login) -> None:
    with login("producer") as producer, login("worker") as worker:
        ((unwanted,),) = producer.execute("select leasehold.enqueue('k')").fetchall()
        assert producer.execute("select leasehold.cancel(%s)", [unwanted]).fetchall() == [(True,)]
        ((job,),) = producer.execute("select leasehold.enqueue('k')").fetchall()
        claim = "019a5f2e-7c11-7abc-8def-0123456789ab"
        [(claimed,)] = worker.execute("select id from leasehold.claim('w', claim_id => %s)", [claim]).fetchall()
        assert claimed == job
        call = "select leasehold.complete_in('w', %s, 1, %s::uuid, '1'::jsonb)"
        assert producer.execute(call, [job, str(job)]).fetchall() == [(False,)]  # the caller does not know the claim
        assert sqlstate_of(producer, f"select leasehold.complete_in('w', '{job}', 1, null)") == "LH003"
        assert producer.execute(call, [job, claim]).fetchall() == [(True,)]
        assert producer.execute("select status, result from leasehold.status(%s)", [job]).fetchall() == [
            ("COMPLETED", 1)
        ]


def test_a_viewer_sees_every_job_and_nothing_of_what_it_carries(login: Login, owner: psycopg.Connection) -> None:
    with login("producer") as producer, login("worker") as worker, login("operator") as operator:
        producer.execute(
            "select leasehold.enqueue('k', '{\"a\": \"secret payload\"}', idempotency_key => 'secret intent',"
            " exclusive_key => 'secret key', tags => '{secret tag}')"
        )
        producer.execute("select leasehold.enqueue('k', payload => '{\"a\": \"secret payload\"}')")
        claimed = worker.execute("select id, payload from leasehold.claim('w', count => 2)").fetchall()
        (first, payload), (second, _) = claimed
        assert payload == {"a": "secret payload"}
        worker.execute("select leasehold.complete('w', array[%s], '{1}', array['\"secret result\"'::jsonb])", [first])
        error = '{"class": "ValueError", "message": "secret message", "traceback": "secret traceback"}'
        worker.execute("select leasehold.fail('w', %s, 1, error => %s)", [second, error])
        operator.execute("select leasehold.cancel(%s, 'secret reason')", [second])
    assert "secret" in str(owner.execute("select j::text from leasehold.jobs j").fetchall())
    with login("viewer") as viewer:
        for view, columns in VIEWS.items():
            if "viewer" not in READERS[view]:
                continue
            cursor = viewer.execute(f"select * from leasehold.{view}")
            assert [column.name for column in cursor.description or ()] == columns
            rows = cursor.fetchall()
            assert "secret" not in str(rows)
            assert len(rows) == {"job_overview": 2, "attempt_overview": 1}.get(view, 0)
        statuses = viewer.execute("select status from leasehold.job_overview").fetchall()
        assert sorted(statuses) == [("CANCELLED",), ("COMPLETED",)]
        with pytest.raises(InsufficientPrivilege):
            viewer.execute("select payload from leasehold.jobs")


def test_what_is_granted_runs_as_its_owner_with_a_search_path_that_ends_in_pg_temp(owner: psycopg.Connection) -> None:
    rows = owner.execute(
        "select oid::regprocedure::text, proname, prosecdef, coalesce(proconfig, '{}') from pg_proc"
        f" where {IN_SCHEMA}"
    ).fetchall()
    for signature, name, definer, settings in rows:
        paths = [setting for setting in settings if setting.startswith("search_path=")]
        if names_of([(name,)]) <= MATRIX.keys() | EVERYBODY:
            assert definer, f"{signature} runs with the caller's rights"
        if definer:
            assert paths == ["search_path=leasehold, pg_temp"], signature
