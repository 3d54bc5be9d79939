"""Laws of verify: it reports nothing of a sound database, each damage under its name, and it is cheap."""

import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.sql.conftest import Database, Session
from tests.sql.operations import variety
from tests.timing import FULL

NAMES = [
    "lost_jobs", "double_owners", "attempt_gaps", "broken_limits", "overdue_leases", "endless_leases", "orphaned_jobs",
    "overdue_jobs", "early_jobs", "unaccepted_jobs", "late_schedules", "forgotten_jobs", "missing_guards",
]  # fmt: skip


def laws(session: Session, **arguments: Any) -> dict[str, Any]:
    return {row.name: row for row in session.rows("verify", **arguments)}


def broken(session: Session, **arguments: Any) -> list[str]:
    return [name for name, row in laws(session, **arguments).items() if not row.ok]


def running(session: Session, jobs: int = 1, *, key: str | None = None, **columns: str) -> list[Any]:
    lease = {
        "attempt": "1",
        "lease_owner": "'w'",
        "lease_expires_at": "clock() + interval '1 hour'",
        "claimed_at": "clock()",
    }
    keyed = {"exclusive_key": f"'{key}'", "is_current": "true"} if key else {}
    return Database.insert(session, jobs, state="'running'", **(lease | keyed | columns))


def test_an_empty_database_is_sound(session: Session) -> None:
    found = laws(session)
    assert list(found) == NAMES
    assert all((row.ok, row.violations, row.capped, row.sample) == (True, 0, False, []) for row in found.values())
    assert all(row.detail and row.checked_at for row in found.values())


@pytest.mark.parametrize("history", [False, True])
def test_a_database_with_jobs_of_all_sorts_is_sound(session: Session, *, history: bool) -> None:
    session.one("history", enabled=history)
    session.one("set_limit", scope="key", name="x", max_running=1)
    variety(session)
    session.one("schedule_put", key="s", kind="k", cron="0 0 * * *")
    assert broken(session) == []
    assert broken(session, slack="0 seconds") in ([], ["late_schedules"])


def lose_a_job(session: Session) -> None:
    job = session.one("enqueue", kind="k")
    assert session.one("claim_job", job_id=job, worker="w")
    session.one("fail", worker="w", id=job, attempt=1)
    session.execute("delete from jobs where id = %s", [job])


def lose_a_recorded_job(session: Session) -> None:
    session.one("history", enabled=True)
    session.execute("delete from jobs where id = %s", [session.one("enqueue", kind="k")])


def run_two_of_a_key(session: Session) -> None:
    session.execute("drop index jobs_current")
    running(session, 2, key="z")


def give_an_attempt_out_twice(session: Session) -> None:
    session.one("history", enabled=True)
    job = session.one("enqueue", kind="k")
    for worker in ("w", "v"):
        assert session.one("claim_job", job_id=job, worker=worker)
        session.execute("alter table jobs disable trigger jobs_transition")
        back = (
            "update jobs set state = 'queued', attempt = 0, lease_owner = null, lease_expires_at = null where id = %s"
        )
        session.execute(back, [job])
        session.execute("alter table jobs enable trigger jobs_transition")


def overrun(scope: str, name: str) -> Callable[[Session], None]:
    def damage(session: Session) -> None:
        session.one("set_limit", scope=scope, name=name, max_running=1)
        if scope == "key":
            for key in ("z1", "z2"):
                running(session, 1, key=key)
        else:
            running(session, 2, queue="'q'")

    return damage


def forget_behind_a_key(session: Session) -> None:
    Database.insert(session, 2, exclusive_key="'z'", parked="true")


def forget_under_a_limit(session: Session) -> None:
    session.one("set_limit", scope="key", name="z", max_running=1)
    Database.insert(session, 1, exclusive_key="'z1'", parked="true", parked_under="'z'")


def forget_under_no_limit(session: Session) -> None:
    Database.insert(session, 1, exclusive_key="'z1'", parked="true", parked_under="'z'")


def leave_a_lease(session: Session) -> None:
    running(session, 1, lease_expires_at="clock() - interval '2 minutes'")


def leave_a_job(session: Session) -> None:
    Database.insert(session, 1, state="'created'", run_at="clock() - interval '2 minutes'")


def leave_a_retry(session: Session) -> None:
    (job,) = Database.insert(
        session, 1, state="'retry'", attempt="1", retry_count="1", run_at="clock() - interval '2 minutes'"
    )
    session.execute("insert into attempts values (%s, 1, 'w', 'failed', clock(), clock())", [job])


def stop_with_a_lease(session: Session) -> None:
    session.one("start_worker", worker="w")
    running(session)
    session.execute("update workers set stopped_at = clock() - interval '2 minutes'")


def drop_an_attempt(session: Session) -> None:
    job = session.one("enqueue", kind="k")
    for attempt in (1, 2):
        assert session.one("claim_job", job_id=job, worker="w")
        session.column("release", worker="w", ids=[job], attempts=[attempt])
    session.execute("delete from attempts where job_id = %s and attempt = 1", [job])


def forge_failures(session: Session) -> None:
    job = session.one("enqueue", kind="k")
    assert session.one("claim_job", job_id=job, worker="w")
    session.column("release", worker="w", ids=[job], attempts=[1])
    session.execute("update jobs set retry_count = 1 where id = %s", [job])


def lease_for_a_year(session: Session) -> None:
    running(session, 1, lease_expires_at="clock() + interval '1 year'")


def lease_for_ever(session: Session) -> None:
    running(session, 1, lease_expires_at="'infinity'")


def queue_for_next_year(session: Session) -> None:
    Database.insert(session, 1, run_at="clock() + interval '1 year'")


def leave_unaccepted(session: Session) -> None:
    nine_days_ago = "clock() - interval '9 days'"
    Database.insert(
        session, 1, id=f"id_at({nine_days_ago})", state="'created'", accepted="false", created_at=nine_days_ago
    )


def neglect_a_schedule(session: Session) -> None:
    session.one("schedule_put", key="s", kind="k", every="1 hour")
    session.execute("update schedules set next_run_at = clock() - interval '2 minutes'")


def tamper(statement: str) -> Callable[[Session], None]:
    return lambda session: session.execute(statement) and None


DAMAGE: dict[str, dict[str, Callable[[Session], None]]] = {
    "lost_jobs": {"an attempt's job": lose_a_job, "an event's job": lose_a_recorded_job},
    "double_owners": {"two of a key": run_two_of_a_key, "an attempt twice": give_an_attempt_out_twice},
    "broken_limits": {
        "global": overrun("global", ""), "queue q": overrun("queue", "q"), "kind k": overrun("kind", "k"),
        "key z": overrun("key", "z"),
    },
    "forgotten_jobs": {
        "behind a key": forget_behind_a_key, "under a limit": forget_under_a_limit, "no limit": forget_under_no_limit,
    },
    "overdue_leases": {"a lease": leave_a_lease},
    "overdue_jobs": {"created": leave_a_job, "retry": leave_a_retry},
    "orphaned_jobs": {"stopped": stop_with_a_lease},
    "attempt_gaps": {"a row is gone": drop_an_attempt, "failures from nowhere": forge_failures},
    "endless_leases": {"a year": lease_for_a_year, "for ever": lease_for_ever},
    "early_jobs": {"a year": queue_for_next_year},
    "unaccepted_jobs": {"of nine days": leave_unaccepted},
    "late_schedules": {"neglected": neglect_a_schedule},
    "missing_guards": {
        "no unique keys": tamper("drop index jobs_idempotency_key"),
        "keys not unique": tamper("drop index jobs_idempotency_key;"
                                  " create index jobs_idempotency_key on jobs (idempotency_key)"),
        "an index is invalid": tamper("update pg_index set indisvalid = false"
                                      " where indexrelid = 'jobs_runnable'::regclass"),
        "no constraint": tamper("alter table jobs drop constraint jobs_within_budget"),
        "not validated": tamper("alter table jobs drop constraint jobs_exclusive; alter table jobs add constraint"
                                " jobs_exclusive check (true) not valid"),
        "no guard": tamper("drop trigger jobs_transition on jobs"),
        "guard off": tamper("alter table jobs disable trigger jobs_transition"),
        "guard for replicas only": tamper("alter table jobs enable replica trigger jobs_transition"),
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("law", "damage"), [(law, damage) for law, ways in DAMAGE.items() for damage in ways.values()],
    ids=[f"{law}: {way}" for law, ways in DAMAGE.items() for way in ways],
)  # fmt: skip
def test_damage_is_reported_under_its_name(session: Session, law: str, damage: Callable[[Session], None]) -> None:
    variety(session)
    damage(session)
    found = laws(session)[law]
    assert not found.ok
    assert found.violations >= 1
    assert found.sample


def test_every_law_has_damage_that_breaks_it() -> None:
    assert sorted(DAMAGE) == sorted(NAMES)


@pytest.mark.parametrize("law", [law for law in NAMES if law not in ("double_owners", "lost_jobs")])
def test_damage_to_one_thing_is_reported_once(session: Session, law: str) -> None:
    next(iter(DAMAGE[law].values()))(session)
    assert broken(session) == [law]


def test_what_is_only_a_little_late_is_no_violation(session: Session) -> None:
    running(session, 1, lease_expires_at="clock() - interval '30 seconds'")
    Database.insert(session, 1, state="'created'", run_at="clock() - interval '30 seconds'")
    assert broken(session) == []
    assert broken(session, slack="10 seconds") == ["overdue_leases", "overdue_jobs"]


def test_a_limit_that_was_lowered_while_more_ran_is_not_broken(session: Session) -> None:
    running(session, 3)
    session.one("set_limit", scope="global", name="", max_running=1)
    assert broken(session) == []
    running(session, 1)
    assert broken(session) == ["broken_limits"]
    assert laws(session)["broken_limits"].sample == ["global"]


def test_an_expired_lease_has_no_place_under_a_limit(session: Session) -> None:
    session.one("set_limit", scope="global", name="", max_running=1)
    running(session, 2, lease_expires_at="clock() - interval '1 second'")
    assert broken(session) == []


def test_a_key_that_is_noted_for_later_is_not_forgotten(session: Session) -> None:
    forget_behind_a_key(session)
    session.execute("insert into unpark_later values ('z')")
    assert broken(session) == []


def test_a_job_that_waits_to_be_accepted_or_for_its_time_is_not_overdue(session: Session) -> None:
    Database.insert(session, 1, state="'created'", run_at="clock() - interval '1 hour'", accepted="false")
    Database.insert(session, 1, state="'created'", run_at="clock() + interval '1 hour'")
    assert broken(session) == []


def test_schedules_that_are_off_over_or_not_due_are_not_late(session: Session) -> None:
    for key in ("off", "over", "soon", "held"):
        session.one("schedule_put", key=key, kind="k", every="1 hour")
    session.execute("update schedules set next_run_at = clock() - interval '1 hour' where key in ('off', 'held')")
    session.execute("update schedules set enabled = false where key = 'off'")
    session.execute("update schedules set over = true, next_run_at = null where key = 'over'")
    session.execute("update schedules set next_run_at = clock() + interval '1 hour' where key = 'soon'")
    session.execute(
        "update schedules set locked_by = 'w', claim_id = gen_random_uuid(), locked_until = clock() where key = 'held'"
    )
    assert broken(session) == []


def test_counting_ends_at_the_cap_and_names_ten(session: Session) -> None:
    Database.insert(session, 30, state="'created'", run_at="clock() - interval '1 hour'")
    row = laws(session, cap=20)["overdue_jobs"]
    assert (row.violations, row.capped, len(row.sample)) == (20, True, 10)
    row = laws(session, cap=30)["overdue_jobs"]
    assert (row.violations, row.capped) == (30, False)


def test_nothing_of_what_jobs_carry_is_shown(session: Session) -> None:
    columns = {"payload": '\'{"a": "secret"}\'::jsonb', "exclusive_key": "'secret'", "parked": "true"}
    Database.insert(session, 3, idempotency_key="'secret' || n", **columns)
    found = laws(session)
    assert not found["forgotten_jobs"].ok
    assert "secret" not in str(found)


def test_unreasonable_arguments_are_refused(session: Session) -> None:
    for arguments in ({"cap": 0}, {"cap": 10_001}, {"latest": 0}, {"slack": "-1 second"}, {"slack": None}):
        with pytest.raises(psycopg.Error) as refused:
            session.rows("verify", **arguments)
        assert refused.value.sqlstate == "LH003"


FILL = """
insert into jobs (max_attempts, kind, state, attempt, run_at, finished_at, finished_by, lease_owner, lease_expires_at,
  exclusive_key, is_current, parked)
select 5, 'k' || n %% 5, s::job_state, (s in ('success', 'running'))::int,
  clock() + case s when 'created' then interval '1 day' else '0' end,
  case s when 'success' then clock() end, 'w', case s when 'running' then 'w' end,
  case s when 'running' then clock() + interval '1 hour' end,
  case when s = 'queued' and n %% 10 = 1 then 'x' || n %% 1000 end, false, false
from generate_series(1, %s) n
cross join lateral (select case when n %% 1000 = 0 then 'running' when n %% 20 = 0 then 'created'
  when n %% 20 = 1 then 'queued' else 'success' end as s) t
"""


def test_it_reads_by_index_and_stays_cheap_however_many_jobs_there_are(session: Session, record_property: Any) -> None:
    """No sequential scan of jobs, attempts or events; at a million jobs well under a second."""
    jobs = 1_000_000 if FULL else 20_000
    session.execute("alter table jobs set (autovacuum_enabled = false)")
    session.execute(FILL, [jobs])
    for analyzed in (False, True):
        if analyzed:
            session.execute("analyze jobs")
        scans = (
            "select relname::text, seq_scan from pg_stat_xact_user_tables"
            " where relname in ('jobs', 'attempts', 'events')"
        )
        with session.transaction():
            assert broken(session) == []
            began = time.perf_counter()
            session.rows("verify")
            took = time.perf_counter() - began
            assert dict(session.execute(scans).fetchall()) == {"jobs": 0, "attempts": 0, "events": 0}
        record_property("seconds", took)
        print(f"{jobs} jobs, analyzed {analyzed}: {took * 1000:.0f} ms")
    if FULL:
        assert took < 1
