"""The answer to a repeated submission waits, like the first one, until everything before it is on disk."""

import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Session

ID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
CALLS = {
    "enqueue by key": ("enqueue", {"kind": "k", "idempotency_key": "x"}),
    "enqueue by id": ("enqueue", {"kind": "k", "id": ID}),
    "enqueue_many": ("enqueue_many", {"jobs": Jsonb([{"kind": "k", "idempotency_key": "x"}])}),
    "enqueue_batch": ("enqueue_batch", {"intent": Jsonb({"kind": "k"}), "payloads": Jsonb([{}]), "ids": [ID]}),
    "submit": ("submit", {"kind": "k", "idempotency_key": "x"}),
}


def writes(session: Session, function: str, **arguments: object) -> bool:
    """Whether the transaction of this call has something to commit, and so to wait for."""
    with session.transaction():
        session.rows(function, **arguments)
        return session.value("select pg_current_xact_id_if_assigned() is not null")


@pytest.mark.parametrize(("function", "arguments"), CALLS.values(), ids=CALLS)
def test_a_repeated_submission_is_written_too(session: Session, function: str, arguments: dict[str, object]) -> None:
    assert writes(session, function, **arguments)
    rows = session.everything()
    assert writes(session, function, **arguments)
    assert session.everything() == rows


def test_accepting_again_is_written_too(session: Session) -> None:
    job = session.one("submit", kind="k", idempotency_key="x")
    for _ in range(3):
        assert writes(session, "accept", id=job)
        assert writes(session, "accept_many", ids=[job])
