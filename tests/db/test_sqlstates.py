"""Codes of PostgreSQL, and what they mean to a user."""

import psycopg
import pytest
from psycopg.pq import DiagnosticField

from leasehold.db.sqlstates import blames_values, certainly_undone, meaning_of, translate, trouble_of
from leasehold.errors import (
    DatabaseUnavailable,
    IdempotencyConflict,
    IllegalTransition,
    InvalidArgument,
    InvalidJob,
    JobUnknown,
    LeaseholdError,
    LockTimeout,
    NotPermitted,
    ScheduleDisabled,
    ScheduleLocked,
    ScheduleNotDue,
    SchemaMismatch,
)

MEANINGS: dict[str, type[LeaseholdError]] = {
    "LH001": IllegalTransition,
    "LH002": JobUnknown,
    "LH003": InvalidArgument,
    "LH004": IdempotencyConflict,
    "LH005": ScheduleLocked,
    "LH006": ScheduleNotDue,
    "LH007": ScheduleDisabled,
    "08006": DatabaseUnavailable,
    "57P01": DatabaseUnavailable,
    "57P03": DatabaseUnavailable,
    "53300": DatabaseUnavailable,
    "58030": DatabaseUnavailable,
    "22P02": InvalidArgument,
    "42501": NotPermitted,
    "3F000": SchemaMismatch,
    "42883": SchemaMismatch,
    "42P01": SchemaMismatch,
}
UNDONE = ["40001", "40P01", "55P03", "57014"]
FOREIGN = ["42703", "23505", "25P02", "XX000", *UNDONE]


@pytest.fixture(scope="module")
def connection(server):
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
        yield connection


def error_of(connection: psycopg.Connection, code: str) -> psycopg.Error:
    raising = f"raise 'the message' using errcode = '{code}', detail = 'the detail', hint = 'the hint'"
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(f"do $$ begin {raising}; end $$".encode())
    assert caught.value.sqlstate == code
    return caught.value


@pytest.mark.parametrize("code", MEANINGS)
def test_a_code_has_one_meaning_for_every_call(connection: psycopg.Connection, code: str) -> None:
    error = error_of(connection, code)
    assert type(translate(error)) is MEANINGS[code]
    assert type(meaning_of(error)) is MEANINGS[code]
    for_jobs = InvalidJob if MEANINGS[code] is InvalidArgument else MEANINGS[code]
    assert type(translate(error, InvalidJob)) is for_jobs


@pytest.mark.parametrize("code", ["LH001", "LH002", "LH003", "LH004", "LH005", "LH006", "LH007"])
def test_our_own_codes_have_the_detail_and_the_hint(connection: psycopg.Connection, code: str) -> None:
    assert str(translate(error_of(connection, code))) == "the detail (the hint)"


@pytest.mark.parametrize("code", FOREIGN)
def test_other_codes_are_left_to_the_user_whose_transaction_it_is(connection: psycopg.Connection, code: str) -> None:
    assert translate(error_of(connection, code)) is None


@pytest.mark.parametrize("code", UNDONE)
def test_on_our_own_connections_what_was_undone_is_worth_another_try(connection: psycopg.Connection, code: str) -> None:
    error = error_of(connection, code)
    assert certainly_undone(error)
    assert type(meaning_of(error)) is (LockTimeout if code == "55P03" else DatabaseUnavailable)
    assert issubclass(LockTimeout, DatabaseUnavailable)


def test_a_lost_answer_is_not_certainly_undone(connection: psycopg.Connection) -> None:
    assert not certainly_undone(psycopg.OperationalError("server closed the connection unexpectedly"))
    assert not certainly_undone(error_of(connection, "57P01"))


def test_without_a_code_only_the_way_to_the_server_is_to_blame() -> None:
    assert type(translate(psycopg.OperationalError("the connection is\n closed"))) is DatabaseUnavailable
    # What the driver itself refuses to send is no outage: waiting for it would not help.
    assert translate(psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")) is None
    assert translate(psycopg.ProgrammingError("the query has 0 placeholders but 1 parameters were passed")) is None
    assert translate(ValueError("?")) is None


def test_the_drivers_error_is_found_below_its_wrappings(connection: psycopg.Connection) -> None:
    wrapped = RuntimeError("(SQLAlchemy says)")
    wrapped.orig = RuntimeError("adapted")  # type: ignore[attr-defined]
    wrapped.orig.sqlstate = "LH003"  # type: ignore[attr-defined]
    wrapped.orig.__cause__ = error_of(connection, "LH003")  # type: ignore[attr-defined]
    assert str(translate(wrapped)) == "the detail (the hint)"


def too_large(file: bytes) -> psycopg.Error:
    """An error of the code that PostgreSQL raises for values that are too large and for a full queue alike."""
    info = {
        DiagnosticField.SQLSTATE: b"54000",
        DiagnosticField.SOURCE_FILE: file,
        DiagnosticField.MESSAGE_PRIMARY: b"the message",
    }
    return psycopg.errors.ProgramLimitExceeded("the message", info=info)


def test_a_full_queue_of_notifications_passes_and_blames_no_value() -> None:
    full = too_large(b"async.c")
    assert certainly_undone(full)
    for meaning in (translate(full), meaning_of(full), trouble_of(full)):
        assert isinstance(meaning, DatabaseUnavailable)
        assert not blames_values(meaning)
        assert "queue of notifications is full" in str(meaning)
        assert "LISTEN" in str(meaning.hint)
    row = too_large(b"nbtutils.c")  # the index row is too large
    assert not certainly_undone(row)
    assert blames_values(trouble_of(row))
