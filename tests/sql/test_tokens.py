"""Laws of the tokens' table: repeated creation makes one, only an API server gets the hash, revocation is final."""

import uuid
from datetime import timedelta

import psycopg
import pytest

HASH = b"h" * 32


def make(session, **changes):
    values = {"id": uuid.uuid4(), "name": "ann", "secret_hash": HASH, "scopes": ["read"]} | changes
    session.one("create_token", **values)
    return values["id"]


def test_creating_a_token_again_makes_no_second_one(session):
    token = make(session, scopes=["submit", "read"], queues=["mail"], rate=2.5)
    make(session, id=token, scopes=["submit", "read"], queues=["mail"], rate=2.5)
    (row,) = session.rows("token", token_id=token)
    assert (row.name, row.secret_hash, row.scopes, row.queues, row.kinds) == (
        "ann",
        HASH,
        ["submit", "read"],
        ["mail"],
        None,
    )
    assert (row.rate, row.live) == (2.5, True)


def test_an_id_that_belongs_to_another_token_is_refused(session):
    token = make(session)
    with pytest.raises(psycopg.Error) as refused:
        make(session, id=token, secret_hash=b"o" * 32)
    assert refused.value.sqlstate == "LH004"
    assert session.rows("token", token_id=token)[0].secret_hash == HASH


def test_twenty_who_create_the_same_token_make_one(db, session):
    token = uuid.uuid4()
    db.crowd(20, lambda mine, _: make(mine, id=token))
    assert session.value("select count(*) from tokens") == 1


def test_an_unknown_token_has_no_row(session):
    assert session.rows("token", token_id=uuid.uuid4()) == []
    assert session.one("revoke_token", id=uuid.uuid4()) is False


def test_a_revoked_token_stays_revoked_and_on_record(session, clock):
    token = make(session)
    assert session.one("tokens_exist") is True
    assert session.one("revoke_token", id=token) is True
    since = clock.now
    clock.advance(60)
    assert session.one("revoke_token", id=token) is True
    assert session.rows("token", token_id=token)[0].live is False
    assert session.one("tokens_exist") is False
    assert session.value("select revoked_at from token_overview") == since
    make(session, id=token)
    assert session.rows("token", token_id=token)[0].live is False


def test_an_expired_token_is_dead_by_the_databases_clock(session, clock):
    token = make(session, expires_at=clock.now + timedelta(seconds=60))
    clock.advance(59)
    assert session.rows("token", token_id=token)[0].live is True
    assert session.one("tokens_exist") is True
    clock.advance(1)
    assert session.rows("token", token_id=token)[0].live is False
    assert session.one("tokens_exist") is False


@pytest.mark.parametrize(
    "changes",
    [
        {"id": None},
        {"name": ""},
        {"name": None},
        {"name": "x" * 201},
        {"secret_hash": b"short"},
        {"secret_hash": None},
        {"scopes": []},
        {"scopes": None},
        {"scopes": ["read", "admin"]},
        {"scopes": [None]},
        {"queues": []},
        {"queues": [""]},
        {"kinds": []},
        {"kinds": [None]},
        {"kinds": ["k"] * 101},
        {"rate": 0},
        {"rate": -1},
        {"rate": float("nan")},
        {"rate": float("inf")},
    ],
)
def test_a_token_that_makes_no_sense_is_refused(shared, changes):
    with pytest.raises(psycopg.Error) as refused:
        make(shared, **changes)
    assert refused.value.sqlstate == "LH003"


def test_the_overview_shows_no_hash(session):
    make(session)
    cursor = session.execute("select * from token_overview")
    assert "secret_hash" not in [column.name for column in cursor.description or ()]
    assert HASH not in cursor.fetchall()[0]
