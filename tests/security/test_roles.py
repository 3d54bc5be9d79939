"""Laws of who may do what: everything in the schema is in the matrix below, and nobody may do more than it says."""

from collections.abc import Iterable

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
    "hint": {"producer", "worker", "api"},
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
    "canary_step": {"worker", "operator"},
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
SECOND = {"create_token", "schedule_run_now", "status", "statuses", "submit_each", "submit_many", "token"}
"""Those that have a _v2 as well."""


def functions(names: Iterable[str]) -> set[str]:
    return {one for name in names for one in (name, f"{name}_v1", *([f"{name}_v2"] if name in SECOND else []))}


EVERYBODY = {"schema_version", "schema_supports_from"}
HELPERS = {
    # of owners
    "owns", "seen", "wait_for_keys", "unpark_ended", "check_results",
    # of sessions that sleep
    "bytes_of", "under_way", "keep_trigger", "made_of", "take_limits", "limit_mark", "limits_wait", "limits_of_keys",
    "look_again", "look_later",
    # of rows that raise, or are too large
    "submit_alone", "submit_intents", "accept_one",
    "is_of_schema", "is_passing", "set_aside", "write_report", "report_one", "renew_one", "first_of_lanes",
    "settle_raised", "take_back", "take_one", "promote_these", "most_bytes", "claim_bytes", "within_bytes",
    # of the rest
    "access_problems", "access_wanted", "granted_functions", "granted_views",
    "doctor_settings", "doctor_time", "setting_ms", "settings_in_force",
    "add_arrays", "admit_each", "admit_in_rooms", "admit_keys", "admit_lanes", "announce", "announce_room", "arrivals",
    "attempt_gaps", "beyond_parent",
    "backoff_seconds", "before_too_many_keys", "begin_claim", "broken_limits", "canaries_run", "canary_advance",
    "canary_alarm", "canary_filter", "canary_retry", "canary_settle", "canary_size", "changed_fields",
    "check_failures", "check_filter", "check_fire", "check_intents", "check_limit", "check_prune", "check_queue",
    "check_span", "check_tally", "check_time_zone", "check_worker", "client_status", "clock", "connections_in_use",
    "cost_per_job", "fields_of",
    "definition_of", "doctor_jobs", "doctor_schema", "doctor_server", "doctor_vacuum", "double_owners",
    "end_schedule_claim", "errands", "error_fits", "exact_length", "exclusive_lock", "expire", "expire_for_parked",
    "expired_under",
    "failures_of", "few", "few_wait", "find_jobs", "find_many", "forgotten_jobs", "histogram_bounds", "holds_exist",
    "horizon", "id_at", "intent_problem", "intents_of", "is_moment", "job_fits", "lane_limits", "lanes_not_paused",
    "lanes_queued", "lanes_ready", "lanes_with_room", "last_error_class", "late_schedules", "lease_of", "leases_of",
    "lock_in_lane", "lock_in_lanes", "lock_runnable", "lost_jobs", "missing_guards", "moment_of",
    "moment_of_id", "names_in_words", "note_changed", "note_recorded", "oldest_ready", "open_walk", "orphaned_jobs",
    "overdue_jobs", "overdue_leases", "park_under", "payload_fits", "plan_schedule_anew", "prefix_end",
    "recent_traffic", "record_intent", "refuse", "refuse_payload", "refuse_rewriting", "refuse_schedule",
    "refuse_transition", "room_under", "running_under", "sample_flow", "schedule_defaults", "schedule_enqueue",
    "declared_of", "schedule_intent_key", "schedule_jitter", "schedule_lock", "schedule_of", "schedule_problem_of",
    "schedule_record", "schedule_run_key", "sees_sessions",
    "settle_exclusive", "states_of", "submission_flaw", "submit_answers", "tally_of", "tasks_of", "token_problem",
    "unfinished_of",
    "unpark", "unpark_again", "unpark_forgotten", "unpark_limited", "unpark_under", "usual_attempts", "uuidv7",
    "verdict", "vouch", "write_schedule",
}  # fmt: skip
"""Nobody's. uuidv7 is ours only before PostgreSQL 18."""

TABLES = {
    "canaries", "canary_jobs", "flow", "statistics",
    "jobs", "attempts", "events", "job_logs", "kinds", "limits", "queues", "schedules", "tokens", "unpark_later",
    "workers", "migrations", "function_files", "function_sets",
}  # fmt: skip
"""Nobody's."""

SEQUENCES = {"events_seq_seq", "function_sets_number_seq", "unpark_later_seq_seq"}
# What may enter.
HELPERS |= {
    "check_readable", "unreadable_intent",
    "check_key", "check_lanes", "check_moment", "check_names", "early_jobs", "endless_leases", "error_of",
    "has_long_number", "history_era", "history_stamp", "is_readable", "json_fault", "key_limits", "key_problem",
    "limits_gone", "limits_lock", "lock_limits", "names_problem", "result_problem", "shortened", "tags_problem",
    "tidy_lines", "tidy_progress", "times_problem", "unaccepted_jobs",
}  # fmt: skip
"""Nobody's."""

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
    "hint": "'{default}'",
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
    "unpark('{k}')",
    "verdict('failed', false, 1, 1)",
    "lock_runnable('[]', 1, now())",
    f"settle_exclusive(array[{NO_ID}], now(), '{{}}')",
    "leases_of('{k}')",
    "begin_claim('w', null)",
    "schedule_of('s', '{}')",
    "end_schedule_claim('s')",
]
IN_SCHEMA = "pronamespace = 'leasehold'::regnamespace"


def test_every_function_is_in_the_matrix(owner: psycopg.Connection) -> None:
    rows = owner.execute(f"select proname from pg_proc where {IN_SCHEMA}").fetchall()
    known = functions(MATRIX) | EVERYBODY | HELPERS
    assert sorted({name for (name,) in rows} - known) == [], "give each new function its place in the matrix"
    assert sorted(known - {name for (name,) in rows} - {"uuidv7"}) == [], "these are gone"


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
    found = {name for name, allowed in owner.execute(query, [names[role]]) if allowed}
    mine = {name for name, roles in MATRIX.items() if role in roles}
    assert found == functions(mine) | EVERYBODY


@pytest.mark.parametrize("role", ROLES)
def test_tables_are_nobodys_and_the_overviews_are_only_read(
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
def test_nobody_may_create_in_the_schema_and_strangers_may_not_even_look_into_it(
    owner: psycopg.Connection, names: dict[str, str], role: str
) -> None:
    query = "select p from unnest(array['usage', 'create']) p where has_schema_privilege(%s, 'leasehold', p)"
    assert owner.execute(query, [names[role]]).fetchall() == ([] if role == "nobody" else [("usage",)])


@pytest.mark.parametrize("role", ROLES)
def test_calls_are_taken_or_refused_as_the_matrix_says(login: Login, role: str) -> None:
    with login(role) as connection:
        for name, roles in MATRIX.items():
            for function in sorted(functions([name])):
                sqlstate = sqlstate_of(connection, f"select * from leasehold.{function}({CALLS.get(name, '')})")
                # LH002: there is no such job; who gets that far was allowed to ask.
                expected = (None, "LH002") if role in roles else ("42501",)
                assert sqlstate in expected, f"{role} calls {function}"


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
        if name not in HELPERS:
            assert definer, f"{signature} runs with the caller's rights"
        if definer:
            assert paths == ["search_path=leasehold, pg_temp"], signature


def test_every_version_has_its_stable_name_with_the_same_arguments_and_results(owner: psycopg.Connection) -> None:
    rows = owner.execute(
        "select proname, pg_get_function_arguments(oid), pg_get_function_result(oid), provolatile, proretset"
        f" from pg_proc where {IN_SCHEMA}"
    ).fetchall()
    versions = sorted((name.removesuffix("_v1"), *rest) for name, *rest in rows if name.endswith("_v1"))
    stable = sorted((name, *rest) for name, *rest in rows if name in MATRIX)
    assert stable == versions
    assert len(stable) == len(MATRIX), "one signature for each name"
