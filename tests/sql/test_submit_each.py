"""Of many submissions, one whose key or row another transaction uses, or whose row raises, holds up no other."""

import time
from uuid import uuid4

import psycopg
import pytest

from tests.timing import bound


def intents(*keys):
    return [{"kind": "k", "id": str(uuid4()), "idempotency_key": key} for key in keys]


def test_a_key_that_an_open_transaction_uses_is_busy_and_the_others_are_recorded(db, session):
    jobs = intents("a", "K", "b", "K", None, "c")
    with db.connect() as sleeper, sleeper.transaction():
        taken = sleeper.one("enqueue", kind="k", idempotency_key="K")
        began = time.monotonic()
        with pytest.raises(psycopg.errors.LockNotAvailable):
            session.rows("submit_many", jobs=jobs)
        assert session.value("select count(*) from jobs") == 0
        rows = session.rows("submit_each", jobs=jobs)
        assert time.monotonic() - began < bound(5)
        assert [row.error for row in rows] == [None, "55P03", None, "55P03", None, None]
        assert [str(row.id) for row in rows if row.error is None] == [jobs[n]["id"] for n in (0, 2, 4, 5)]
        assert "another transaction is using this idempotency key" in rows[1].detail
    again = session.rows("submit_many", jobs=jobs)
    assert [row.id for row in again if row.error is None][1] == taken
    assert session.value("select count(*) from jobs") == 5


def test_a_call_waits_for_ten_busy_keys_and_hardly_for_more(db, session):
    """Each insert writes down how long it would have waited."""
    session.execute(
        "create function patience() returns trigger language plpgsql as"
        " $$ begin new.origin := current_setting('lock_timeout'); return new; end $$;"
        " create trigger patience before insert on jobs for each row execute function patience()"
    )
    keys = [f"K{n}" for n in range(30)]
    with db.connect() as sleeper, sleeper.transaction():
        sleeper.rows("enqueue_many", jobs=intents(*keys))
        rows = session.rows("submit_each", jobs=intents("a", *keys[:9], "b", *keys[9:], *keys, "c"))
    assert [row.ord for row in rows if row.error is None] == [1, 11, 63]
    assert {row.error for row in rows} == {None, "55P03"}
    recorded = session.values(
        "select origin from jobs where idempotency_key in ('a', 'b', 'c') order by idempotency_key"
    )
    assert recorded == ["20ms", "20ms", "1ms"]
    assert session.value("show lock_timeout") == "0"


def test_each_has_the_answer_that_submit_many_returns(session):
    jobs = [*intents("a"), {"kind": ""}, {"kind": "k", "idempotency_key": "a", "strict": True, "payload": {"n": 1}}, 7]
    rows = session.rows("submit_each", jobs=jobs)
    assert [(row.ord, row.error) for row in rows] == [(1, None), (2, "LH003"), (3, "LH004"), (4, "LH003")]
    assert [row[:3] for row in session.rows("submit_many", jobs=jobs)] == [row[:3] for row in rows]
    with pytest.raises(psycopg.Error, match="invalid_argument"):
        session.rows("submit_each", jobs={"kind": "k"})


def test_a_row_that_raises_is_refused_alone(session):
    session.execute(
        "create function loud() returns trigger language plpgsql as $$ begin raise exception 'not that'; end $$;"
        " create trigger loud before insert on jobs for each row when (new.kind = 'bad') execute function loud()"
    )
    jobs = [*intents("a"), {"kind": "bad"}, *intents("b")]
    with pytest.raises(psycopg.errors.RaiseException):
        session.rows("submit_many", jobs=jobs)
    rows = session.rows("submit_each", jobs=jobs)
    assert [(row.error, row.detail) for row in rows] == [(None, None), ("P0001", "not that"), (None, None)]


def test_a_row_that_is_locked_or_raises_when_it_is_accepted_is_left_out_and_the_others_are_accepted(db, session):
    session.execute(
        "create function loud() returns trigger language plpgsql as $$ begin raise exception 'not that'; end $$;"
        " create trigger loud before update on jobs for each row when (new.kind = 'bad') execute function loud()"
    )
    locked, bad, good, before = (session.one("submit", kind=kind) for kind in ("k", "bad", "k", "k"))
    session.one("accept", id=before)
    ids = [locked, bad, good, before, uuid4()]
    with db.connect() as sleeper, sleeper.transaction(force_rollback=True):
        sleeper.one("cancel", id=locked)
        with pytest.raises(psycopg.Error):
            session.rows("accept_many", ids=[locked, good])
        rows = session.rows("accept_each", ids=ids)
        assert [(row.id, row.state) for row in rows] == [(good, "queued"), (before, "queued")]
    assert [row.id for row in session.rows("accept_each", ids=ids)] == [locked, good, before]
