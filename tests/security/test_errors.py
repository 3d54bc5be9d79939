"""Laws of errors: constant messages under SQLSTATEs of our own, each with its exception."""

import re
from collections.abc import Iterator
from importlib.resources import files

import psycopg
import pytest

from leasehold.db.sqlstates import translate
from leasehold.errors import (
    IdempotencyConflict,
    IllegalTransition,
    InvalidArgument,
    JobUnknown,
    LeaseholdError,
    NotPermitted,
    ScheduleDisabled,
    ScheduleLocked,
    ScheduleNotDue,
    TokenTooStrong,
)

ERRORS = {
    "LH001": ("illegal_transition", IllegalTransition),
    "LH002": ("job_unknown", JobUnknown),
    "LH003": ("invalid_argument", InvalidArgument),
    "LH004": ("idempotency_conflict", IdempotencyConflict),
    "LH005": ("job_locked", ScheduleLocked),
    "LH006": ("job_not_due", ScheduleNotDue),
    "LH007": ("job_disabled", ScheduleDisabled),
    "LH008": ("queue_not_allowed", NotPermitted),
    "LH009": ("token_too_strong", TokenTooStrong),
}
UNKNOWN = "'00000000-0000-0000-0000-00000000000{}'::uuid"
KEYED = "select leasehold.enqueue('k', '{}', idempotency_key => 'taken', strict => true)"

SCHEDULES = """
select leasehold.schedule_put(key, 'k', every => '1 hour', enabled => key !~ 'off')
from unnest(array['locked', 'later', 'over', 'off', 'off too']) key;
select leasehold.schedule_claim('locked', 'somebody');
update leasehold.schedules set next_run_at = now() + interval '1 hour' where key = 'later';
update leasehold.schedules set over = true where key = 'over';
"""

# Two ways into each error: what differs between them must not be in the message.
CAUSES = {
    "LH001": [
        "update leasehold.jobs set state = 'success', finished_at = now() where idempotency_key = 'taken'",
        "update leasehold.jobs set state = 'created' where idempotency_key = 'taken'",
    ],
    "LH002": [
        *(f"select leasehold.{name}({UNKNOWN.format(n)})" for name in ("accept", "cancel", "retry") for n in (1, 2)),
        f"select leasehold.claim_job({UNKNOWN.format(1)}, 'w')",
    ],
    "LH003": [
        "select leasehold.enqueue('')",
        "select leasehold.enqueue('k', priority => 99999)",
        "select leasehold.enqueue('k', '[]')",
        "select leasehold.enqueue('k', run_at => now(), run_after => '1 s')",
        "select leasehold.enqueue_many('{}')",
        "select leasehold.enqueue_batch('{}', '[]')",
        """select leasehold.enqueue_batch('{"kind": "k"}', '[1]')""",
        """select leasehold.enqueue_many('[{"kind": "k", "colour": 1}]')""",
        "select leasehold.submit('k', queue => '')",
        "select leasehold.submit_many('{}')",
        """select leasehold.submit_many('[{"kind": ""}]', true)""",
        "select leasehold.claim('w', count => 0)",
        "select leasehold.claim('')",
        f"select leasehold.claim_job({UNKNOWN.format(1)}, '')",
        "select leasehold.fail_many('w', '{}')",
        f"select leasehold.fail('w', {UNKNOWN.format(1)}, 1, outcome => 'snoozed')",
        "select leasehold.declare_kinds('{k}', '{0}')",
        "select leasehold.start_worker('')",
    ],
    "LH004": [
        KEYED.replace("'k'", "'another'"),
        KEYED.replace("'{}'", "'{\"a\": 1}'"),
        "select leasehold.enqueue('k', idempotency_key => 'free', id => id) from leasehold.jobs",
        """select leasehold.enqueue_many(format('[{"kind": "k", "idempotency_key": "free", "id": "%s"}]', id)::jsonb)
           from leasehold.jobs""",
        """select leasehold.submit_many('[{"kind": "l", "idempotency_key": "taken", "strict": true}]', true)""",
    ],
    "LH005": [
        "select leasehold.schedule_claim('locked', 'w')",
        f"select leasehold.schedule_fire('locked', 'w', {UNKNOWN.format(1)}, null, '{{}}', null)",
    ],
    "LH006": [f"select leasehold.schedule_claim('{key}', 'w')" for key in ("later", "over")],
    "LH007": [f"select leasehold.schedule_claim('{key}', 'w')" for key in ("off", "off too")],
    "LH008": [
        """select leasehold.submit_many('[{"kind": "k", "queues": ["a"]}]', true)""",
        """select leasehold.submit_many('[{"kind": "k"}, {"kind": "k", "queue": "b", "queues": ["a"]}]', true)""",
    ],
    "LH009": [
        f"""select leasehold.create_token_v1(gen_random_uuid(), 't', sha256('t'), '{{submit}}',
            created_by => {UNKNOWN.format(1)})""",
        f"""with parent as (select {UNKNOWN.format(2)} as id), made as (
              select p.id, leasehold.create_token_v1(p.id, 'p', sha256('p'), '{{submit}}') from parent p)
            select leasehold.create_token_v1(gen_random_uuid(), 'c', sha256('c'), '{{operate}}', created_by => m.id)
            from made m""",
    ],
}


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(KEYED)
        connection.execute(SCHEDULES)
        yield connection


@pytest.mark.parametrize("code", ERRORS)
def test_an_error_has_its_code_a_constant_message_and_its_exception(connection: psycopg.Connection, code: str) -> None:
    message, exception = ERRORS[code]
    details = set()
    for cause in CAUSES[code]:
        with pytest.raises(psycopg.Error) as caught:
            connection.execute(cause)
        found = caught.value
        assert (found.sqlstate, found.diag.message_primary) == (code, message), cause
        details.add(found.diag.message_detail)
        meaning = translate(found)
        assert type(meaning) is exception, cause
        assert str(found.diag.message_detail) in str(meaning)
    assert None not in details
    assert len(details) > 1, "the detail names the value"


def sources() -> Iterator[tuple[str, str]]:
    root = files("leasehold.db") / "sql"
    for folder in ("migrations", "functions"):
        for file in (root / folder).iterdir():
            if file.name.endswith(".sql"):
                yield file.name, re.sub(r"--.*", "", file.read_text())


def test_every_refusal_in_the_files_is_one_of_these() -> None:
    found = set()
    for name, text in sources():
        calls = len(re.findall(r"perform refuse\(", text))
        refusals = re.findall(r"perform refuse\(\s*'(\w+)',\s*'(\w+)'", text)
        assert len(refusals) == calls, f"{name}: a refusal whose code or message is not a literal"
        found |= set(refusals)
        assert set(re.findall(r"'(LH\w+)'", text)) <= ERRORS.keys(), name
    assert found == {(code, message) for code, (message, _) in ERRORS.items()}


def test_nothing_else_in_the_files_raises_an_error_but_a_repeatable_one() -> None:
    raised = {
        (name, what)
        for name, text in sources()
        for what in re.findall(r"\braise\s+(\w+)", re.sub(r"'[^']*'", "''", text))
        if what not in {"notice", "log"}
    }
    repeatable = {
        ("record.sql", "serialization_failure"),
        ("limits.sql", "lock_not_available"), ("submit.sql", "lock_not_available"),
        ("limits_take.sql", "lock_not_available"), ("exclusive.sql", "lock_not_available"),  # caught where raised
    }  # fmt: skip
    of_one_row = {("claim_each.sql", "program_limit_exceeded"), ("claim_each.sql", "exception")}  # raised again
    assert raised == {("00_common.sql", "exception")} | repeatable | of_one_row


def test_every_code_of_ours_has_an_exception_and_an_unknown_one_has_none(connection: psycopg.Connection) -> None:
    def meaning(code: str) -> LeaseholdError | None:
        with pytest.raises(psycopg.Error) as caught:
            connection.execute(f"do $$ begin raise exception using errcode = '{code}', message = 'x'; end $$")
        return translate(caught.value)

    codes = {code for _, text in sources() for code in re.findall(r"'(LH\d{3})'", text)}
    assert codes
    assert {code: type(meaning(code)) for code in codes} == {code: ERRORS[code][1] for code in codes}
    assert type(meaning("42501")) is NotPermitted
    assert meaning("LH999") is None
