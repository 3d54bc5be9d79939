"""Laws of making and changing schedules, by people and by code."""

from datetime import timedelta

import psycopg
import pytest

from leasehold.db.sqlstates import translate
from leasehold.errors import InvalidArgument
from leasehold.retry import USUAL_ATTEMPTS
from tests.schedules.conftest import claim, fire, refused, stored

WRONG = {
    "key is empty": {"key": ""},
    "key is longer than 200 bytes": {"key": "k" * 201},
    "kind is empty": {"kind": ""},
    "queue is empty": {"queue": ""},
    "payload is not a JSON object": {"payload": psycopg.types.json.Jsonb([1])},
    "priority 99999": {"priority": 99999},
    "max_attempts 0": {"max_attempts": 0},
    "give either every or cron": {"cron": "* * * * *"},
    "neither": {"every": None},
    "not between 1 second": {"every": "0.5 seconds"},
    "every of 1 mon": {"every": "1 month"},
    "does not have five fields": {"every": None, "cron": "* * * *"},
    "cron 'x; y": {"every": None, "cron": "x; y z * *"},
    "time zone 'Europe/Berlinn'": {"time_zone": "Europe/Berlinn"},
    "it ends before it starts": {"starts_at": "2026-01-02", "ends_at": "2026-01-01"},
    "jitter 25:00:00": {"jitter": "25 hours"},
    "grace -00:00:01": {"grace": "-1 second"},
    "grace 87673:00:00": {"grace": "87673 hours"},
    "starts_at -infinity": {"starts_at": "-infinity"},
    "ends_at infinity": {"ends_at": "infinity"},
    "ends_at 12000": {"ends_at": "12000-01-01"},
    "cron is longer than 500 bytes": {"every": None, "cron": f"{'1,' * 300}1 * * * *"},
    "missed 'maybe'": {"missed": "maybe"},
    "max_missed 0": {"max_missed": 0},
    "overlap 'maybe'": {"overlap": "maybe"},
    "due_argument is empty": {"due_argument": ""},
}


@pytest.mark.parametrize("what", WRONG)
def test_a_schedule_that_makes_no_sense_is_refused_by_name(session, what):
    with pytest.raises(psycopg.Error) as caught:
        session.one("schedule_put", **{"key": "s", "kind": "k", "every": "1 hour", **WRONG[what]})
    assert (caught.value.sqlstate, caught.value.diag.message_primary) == ("LH003", "invalid_argument")
    assert what in str(caught.value.diag.message_detail) or what == "neither"
    assert isinstance(translate(caught.value), InvalidArgument)
    assert session.rows("schedule_list") == []


def test_putting_the_same_again_writes_nothing(session):
    arguments = {
        "key": "s",
        "kind": "k",
        "cron": "*/5 * * * *",
        "payload": {"a": [1]},
        "tags": ["t"],
        "jitter": "1 min",
    }
    assert session.one("schedule_put", **arguments) is True
    before = session.execute("select xmin, * from schedules").fetchall()
    assert session.one("schedule_put", **arguments) is False
    assert session.execute("select xmin, * from schedules").fetchall() == before


def test_a_new_rule_counts_from_now_and_any_other_change_leaves_the_next_run(session, clock):
    session.one("schedule_put", key="s", kind="k", every="1 hour")
    fire(session, claim(session), [], clock.now + timedelta(hours=1))
    before = stored(session).next_run_at
    clock.advance(60)
    session.one("schedule_put", key="s", kind="other", every="1 hour", priority=9)
    assert stored(session).next_run_at == before
    session.one("schedule_put", key="s", kind="other", every="2 hours", priority=9)
    now = stored(session)
    assert (now.next_run_at, now.due_after) == (None, clock.now)
    assert session.rows("schedule_due") == [("s", 0.0)], "the scheduler finds the next run, at once"


def test_a_schedule_that_was_put_while_it_is_disabled_stays_so_unless_it_is_enabled(session):
    session.one("schedule_put", key="s", kind="k", every="1 hour")
    assert session.one("schedule_disable", key="s") is True
    assert session.one("schedule_disable", key="s") is False
    session.one("schedule_put", key="s", kind="k", every="2 hours")
    assert stored(session).enabled is False
    session.one("schedule_put", key="s", kind="k", every="2 hours", enabled=True)
    assert stored(session).enabled is True
    assert session.one("schedule_enable", key="s") is False


@pytest.mark.parametrize("function", ["schedule_enable", "schedule_disable", "schedule_run_now"])
def test_nothing_is_done_to_a_schedule_that_is_not_there(session, function):
    with refused("LH002", "job_unknown"):
        session.one(function, key="s")


def test_the_scheduler_learns_when_to_query_next(session, clock):
    for n, key in enumerate(("b", "a", "c")):
        session.one("schedule_put", key=key, kind="k", every="1 hour")
        fire(session, claim(session, key=key), [], clock.now + timedelta(minutes=10 * (n + 1)), key=key)
    assert session.rows("schedule_due") == [("b", 600.0), ("a", 1200.0), ("c", 1800.0)]
    session.one("schedule_disable", key="b")
    clock.advance(1200)
    assert session.rows("schedule_due", max=1) == [("a", 0.0)]
    claim(session, key="a")
    assert session.rows("schedule_due") == [("a", 15.0), ("c", 600.0)], "a claim is waited for"


def test_a_change_wakes_each_listener(db, session):
    listener = db.connect()
    listener.execute("listen leasehold")
    for call in (
        lambda: session.one("schedule_put", key="s", kind="k", every="1 hour"),
        lambda: session.column("schedule_sync", declarations=[{"key": "t", "kind": "k", "every": "1 hour"}]),
        lambda: session.one("schedule_disable", key="s") and session.one("schedule_enable", key="s"),
    ):
        call()
        assert [n.payload for n in listener.notifies(timeout=60, stop_after=1)] == ["@schedule"]


# -- declared by code


def sync(session, **fields):
    return session.column("schedule_sync", declarations=[{"key": "s", "kind": "k", "every": "1 hour", **fields}])


def test_what_code_declares_is_made_and_declaring_it_again_writes_nothing(session):
    assert sync(session, payload={"a": 1}) == ["s"]
    before = session.execute("select xmin, * from schedules").fetchall()
    assert sync(session, payload={"a": 1}) == []
    assert session.execute("select xmin, * from schedules").fetchall() == before
    assert stored(session).declared is not None


def test_a_field_that_an_operator_changed_stays_until_code_says_something_new_about_it(session):
    sync(session, queue="a", priority=1)
    session.one("schedule_put", key="s", kind="k", every="10 minutes", queue="b", priority=1)
    sync(session, queue="a", priority=2)
    now = stored(session)
    assert (now.queue, now.priority, now.every) == ("b", 2, timedelta(minutes=10))
    sync(session, queue="c", priority=2)
    assert (stored(session).queue, stored(session).every) == ("c", timedelta(minutes=10))
    sync(session, queue="c", priority=2, every="20 minutes")
    assert stored(session).every == timedelta(minutes=20)


def test_a_schedule_that_was_switched_off_is_not_switched_on_by_a_release(session):
    sync(session)
    session.one("schedule_disable", key="s")
    sync(session, queue="new")
    assert (stored(session).enabled, stored(session).queue) == (False, "new")


def test_the_two_forms_of_a_rule_are_one_field(session):
    sync(session)
    session.one("schedule_put", key="s", kind="k", cron="* * * * *")
    sync(session, queue="new")
    assert (stored(session).every, stored(session).cron) == (None, "* * * * *")
    sync(session, queue="new", every="2 hours")
    assert (stored(session).every, stored(session).cron) == (timedelta(hours=2), None)
    sync(session, queue="new", every=None, cron="0 * * * *")
    assert (stored(session).every, stored(session).cron) == (None, "0 * * * *")


def test_a_schedule_that_a_person_made_is_left_to_them_and_only_later_changes_of_code_come_in(session):
    session.one("schedule_put", key="s", kind="mine", every="5 minutes")
    sync(session, queue="code")
    now = stored(session)
    assert (now.kind, now.queue, now.every, now.declared is not None) == ("mine", "default", timedelta(minutes=5), True)
    sync(session, queue="code2")
    assert (stored(session).kind, stored(session).queue) == ("mine", "code2")


def test_a_field_that_is_no_field_is_refused_and_nothing_of_the_batch_is_stored(session):
    declarations = [{"key": "a", "kind": "k", "every": "1 hour"}, {"key": "b", "kind": "k", "evry": "1 hour"}]
    with pytest.raises(psycopg.Error, match="unknown field 'evry'"):
        session.column("schedule_sync", declarations=declarations)
    for wrong in ({"key": "a"}, {"kind": "k", "every": "1 hour"}):
        with refused("LH003", "invalid_argument"):
            session.column("schedule_sync", declarations=[wrong])
    with refused("LH003", "invalid_argument"):
        session.one("schedule_sync", declarations={})
    assert session.rows("schedule_list") == []


def test_workers_that_start_together_agree(db, session):
    keys = [f"s{n}" for n in range(20)]

    def start(own, place):
        order = keys if place % 2 else keys[::-1]
        declarations = [{"key": key, "kind": "k", "every": "1 hour", "queue": f"q{place % 2}"} for key in order]
        for _ in range(5):
            own.column("schedule_sync", declarations=declarations)

    db.crowd(8, start)
    assert [row.key for row in session.rows("schedule_list")] == sorted(keys)
    assert {row.queue for row in session.rows("schedule_list")} <= {"q0", "q1"}


def test_what_a_schedule_leaves_out_is_as_the_task_of_its_kind_declares(session):
    task = {"kind": "SEND", "lease_seconds": 30, "queue": "mail", "priority": 7, "max_attempts": 3}
    session.one("declare_tasks", tasks=psycopg.types.json.Jsonb([task]))
    session.one("schedule_put", key="s", kind="SEND", every="1 hour")
    session.one("schedule_put", key="own", kind="SEND", every="1 hour", queue="q", priority=0, max_attempts=9)
    session.one("schedule_put", key="unknown", kind="k", every="1 hour")
    found = {row.key: (row.queue, row.priority, row.max_attempts) for row in session.rows("schedule_list")}
    assert found == {"s": ("mail", 7, 3), "own": ("q", 0, 9), "unknown": ("default", 0, USUAL_ATTEMPTS)}
