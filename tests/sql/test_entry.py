"""What enters is refused where it enters: legal jsonb, texts and times that no program could use later."""

from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

# Each a jsonb object: a few kB stored, far too much as text, or too deep.
BOMBS = {
    "large exponents": """('{"a":[' || repeat('1e131071,', 9000) || '1]}')::jsonb""",
    "large exponents, a few": """('{"a":[' || repeat('1e131071,', 40) || '1]}')::jsonb""",
    "large exponents, negative": """('{"a":[' || repeat('-1e131071,', 900) || '1]}')::jsonb""",
    "small exponents": """('{"a":[' || repeat('1e-16000,', 900) || '1]}')::jsonb""",
    "zeros as decimals": "(select jsonb_build_object('a', array_agg(round(0.0, 16383))) from generate_series(1, 900))",
    "deep down": """('{"a":[[[{"b":[' || repeat('1e131071,', 900) || '1]}]]]}')::jsonb""",
    "control characters": "jsonb_build_object('a', repeat(chr(1), 800000))",
    "control characters in a key": "jsonb_build_object(repeat(chr(1), 800000), 1)",
}
LARGE = "larger than 4 MiB as text"
INTENT = "jsonb_build_object('kind', 'k')"
LADEN = f"{INTENT} || jsonb_build_object('payload', p)"
DECLARED = f"{INTENT} || jsonb_build_object('key', 's', 'every', '1 hour')"
ENTRANCES = {
    "enqueue": "select enqueue('k', p) from payload",
    "submit": "select submit('k', p) from payload",
    "enqueue_many": f"select enqueue_many(jsonb_build_array({INTENT}, {LADEN})) from payload",
    "enqueue_batch": """select enqueue_batch('{"kind": "k"}', jsonb_build_array('{}'::jsonb, p)) from payload""",
    "submit_many": f"select submit_many(jsonb_build_array({LADEN}), true) from payload",
    "schedule_put": "select schedule_put('s', 'k', every => '1 hour', payload => p) from payload",
    "schedule_sync": f"select schedule_sync(jsonb_build_array({DECLARED} || {LADEN})) from payload",
}
# What PostgreSQL takes for a time or a length of time and no calendar knows.
MOMENTS = ["infinity", "-infinity", "10000-01-01", "9999-12-31 23:00+00", "0001-01-01 BC", "294276-12-31"]
LENGTHS = ["1001 years", "-1001 years", "178000000 years", "2147483647 days"]


@pytest.fixture
def session(shared):
    shared.execute("truncate schedules, job_logs, queues")
    return shared


def refused(session, query, *arguments):
    """What is said of a call that is refused and changes nothing."""
    tables = ("jobs", "schedules", "limits", "queues", "kinds", "workers", "tokens")
    count = "select " + " + ".join(f"(select count(*) from {table})" for table in tables)
    before = session.value(count)
    with pytest.raises(psycopg.Error) as error:
        session.execute(query, arguments or None)
    assert error.value.sqlstate == "LH003", error.value
    assert error.value.diag.message_primary == "invalid_argument"
    assert error.value.diag.message_hint
    assert session.value(count) == before
    return error.value.diag.message_detail


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_payload_that_is_too_long_as_text_is_refused(session, bomb):
    session.execute("set statement_timeout = '60s'")
    assert LARGE in refused(session, f"with payload(p) as (select {bomb}) {ENTRANCES['enqueue']}")


@pytest.mark.parametrize("entrance", ENTRANCES.values(), ids=ENTRANCES)
def test_every_entrance_judges_a_compressed_payload_by_what_it_is(session, entrance):
    session.execute("drop table if exists payload")
    session.execute(f"create temp table payload as select {BOMBS['large exponents']} as p")
    assert session.value("select pg_column_size(p) from payload") < 3000
    assert LARGE in refused(session, entrance)


@pytest.mark.parametrize("entrance", ENTRANCES.values(), ids=ENTRANCES)
def test_a_payload_of_65_levels_is_refused_and_one_of_64_is_taken(session, entrance):
    nested = """with payload(p) as (select (repeat('{{"a":', {0}) || '[]' || repeat('}}', {0}))::jsonb)"""
    assert "nested deeper than 64 levels" in refused(session, f"{nested.format(64)} {entrance}")
    assert "nested deeper than 64 levels" in refused(session, f"{nested.format(3000)} {entrance}")
    session.execute(f"{nested.format(63)} {entrance}")


@pytest.mark.parametrize(
    "payload",
    [
        """('{"a":[' || repeat('-1e999,', 25) || '1]}')::jsonb""",
        """('{"a":[' || repeat('1e300,', 9000) || '1]}')::jsonb""",
        "jsonb_build_object('a', (select jsonb_agg(n * 1.5) from generate_series(1, 100000) n))",
        "jsonb_build_object('a', repeat(chr(1), 690000))",
        "jsonb_build_object('a', repeat('x', 4194000))",
    ],
)
def test_what_fits_into_4_mib_is_taken_and_can_be_claimed(session, payload):
    job = session.value(f"select enqueue('k', {payload}, queue => 'fits')")
    (claimed,) = session.execute("select id, length(payload::text) from claim('w', '{fits}')").fetchall()
    assert claimed[0] == job
    assert claimed[1] <= 4_194_304


@pytest.mark.parametrize("number", ["1e1000", "-1e131071", "9" * 5000])
def test_a_number_of_more_than_a_thousand_digits_is_refused_wherever_it_enters(session, number):
    payload = f"""('{{"a": [{{"b": {number}}}]}}')::jsonb"""
    for entrance in ENTRANCES.values():
        assert "a number of more than 1000 digits" in refused(
            session, f"with payload(p) as (select {payload}) {entrance}"
        )
    job = session.one("enqueue", kind="k", queue="large result")
    assert session.one("claim_job", job_id=job, worker="w") is True
    assert "a number of more than 1000 digits" in refused(
        session, f"select complete('w', %s, '{{1}}', array[{payload}])", [job]
    )


def test_a_small_payload_is_not_looked_at_twice(db):
    session = db.connect()
    session.mutate("json_fault", "if stored > most", "if true")
    session.execute("""select enqueue('k', '{"to": "a@example.org", "subject": "hello", "n": 12.5}')""")
    session.execute(
        """select enqueue_batch('{"kind": "k"}', jsonb_build_array(jsonb_build_object('a', repeat('x', 400))))"""
    )
    assert "4 MiB" in refused(session, "select enqueue('k', jsonb_build_object('a', repeat('x', 500)))")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_moment_outside_the_calendar_is_refused(session, moment):
    assert "run_at" in refused(session, "select enqueue('k', run_at => %s)", moment)
    assert "run_at" in refused(session, "select submit('k', run_at => %s)", moment)
    assert "run_at" in refused(
        session, "select enqueue_many(jsonb_build_array(jsonb_build_object('kind', 'k', 'run_at', %s::text)))", moment
    )
    assert "run_at" in refused(
        session, "select enqueue_batch(jsonb_build_object('kind', 'k', 'run_at', %s::text), '[{}]')", moment
    )
    job = "jsonb_build_object('kind', 'k', 'run_at', %s::text)"
    assert "run_at" in refused(session, f"select submit_many(jsonb_build_array({job}), all_or_none => true)", moment)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_length_of_time_beyond_the_calendar_is_refused(session, length):
    assert "run_after" in refused(session, "select enqueue('k', run_after => %s)", length)
    assert "run_after" in refused(session, "select submit('k', run_after => %s)", length)
    intent = "jsonb_build_object('kind', 'k', 'run_after', %s::text)"
    assert "run_after" in refused(session, f"select enqueue_many(jsonb_build_array({intent}))", length)
    assert "run_after" in refused(session, f"select enqueue_batch({intent}, '[{{}}]')", length)


@pytest.mark.parametrize("moment", ["0001-01-02", "9999-12-29"])
def test_a_moment_of_the_calendar_is_taken_and_read_by_every_time_zone(session, moment):
    job = session.value("select enqueue('k', run_at => %s)", moment)
    for zone in ("Pacific/Kiritimati", "Etc/GMT+12", "UTC"):
        session.execute(f"set timezone = '{zone}'")
        assert session.job(job)["run_at"].year in (1, 9999)


@pytest.mark.parametrize(
    ("tags", "detail"),
    [
        (["x" * 501], "a tag is longer than 500 bytes"),
        (["ok", "ä" * 251], "a tag is longer than 500 bytes"),
        (["x" * 20_000_000], "a tag is longer than 500 bytes"),
        (["t"] * 51, "more than 50 tags"),
        ([None], "a tag is null"),
        ([["a"], ["b"]], "tags is not a plain list"),
    ],
    ids=["long", "long in bytes", "20 MB", "many", "null", "nested"],
)
def test_tags_are_bounded(session, tags, detail):
    assert detail in refused(session, "select enqueue('k', tags => %s::text[])", tags)
    assert detail in refused(session, "select submit('k', tags => %s::text[])", tags)
    if tags == [None] or isinstance(tags[0], list):
        return
    intent = "jsonb_build_object('kind', 'k', 'tags', %s::text[])"
    assert detail in refused(session, f"select enqueue_many(jsonb_build_array({intent}))", tags)
    assert detail in refused(session, f"select submit_many(jsonb_build_array({intent}), all_or_none => true)", tags)
    assert detail in refused(
        session,
        f"select schedule_sync(jsonb_build_array({intent} || %s))",
        tags,
        Jsonb({"key": "s", "every": "1 hour"}),
    )


def test_fifty_tags_of_500_bytes_are_taken(session):
    job = session.value("select enqueue('k', tags => %s::text[])", ["x" * 500] * 50)
    assert len(session.job(job)["tags"]) == 50


@pytest.mark.parametrize(
    "call",
    [
        "select enqueue('k', idempotency_key => %s)",
        "select submit('k', idempotency_key => %s)",
        "select enqueue_many(jsonb_build_array(jsonb_build_object('kind', 'k', 'idempotency_key', %s::text)))",
        "select submit_many(jsonb_build_array(jsonb_build_object('kind', 'k', 'idempotency_key', %s::text)), true)",
    ],
)
def test_no_producer_can_take_the_key_of_a_schedules_job(session, call):
    due = "2031-01-01T00:00:00.000000Z"
    assert "kept for the jobs of schedules" in refused(session, call, f"schedule:nightly:{due}")
    session.execute(call, [f"x-schedule:{uuid4()}"])


def test_a_field_that_should_be_a_text_and_is_a_bomb_refuses_only_its_own_submission(session):
    session.execute("set statement_timeout = '60s'")
    bomb = BOMBS["large exponents"]
    for field in (
        "kind",
        "queue",
        "priority",
        "max_attempts",
        "strict",
        "id",
        "run_at",
        "run_after",
        "idempotency_key",
        "tags",
    ):
        answers = session.execute(
            "select error from submit_many(jsonb_build_array(jsonb_build_object('kind', 'k'),"
            f" jsonb_build_object('kind', 'k') || jsonb_build_object('{field}', {bomb}))) order by ord"
        ).fetchall()
        assert answers == [(None,), ("LH003",)], field


# Everything else that takes a time or a length of time. Each `{}` is filled with what no calendar knows.
TIMES = {
    "schedule_put starts_at": "select schedule_put('s', 'k', every => '1 hour', starts_at => '{moment}')",
    "schedule_put ends_at": "select schedule_put('s', 'k', every => '1 hour', ends_at => '{moment}')",
    "schedule_put every": "select schedule_put('s', 'k', every => '{length}')",
    "schedule_put jitter": "select schedule_put('s', 'k', every => '1 hour', jitter => '{length}')",
    "schedule_put grace": "select schedule_put('s', 'k', every => '1 hour', grace => '{length}')",
    "schedule_fire": "select schedule_fire('s', 'w', gen_random_uuid(), now(), array['{moment}'::timestamptz], null)",
    "schedule_fire next": "select schedule_fire('s', 'w', gen_random_uuid(), now(), '{{}}', '{moment}')",
    "list_jobs": """select list_jobs('{{"created_after": "{moment}"}}')""",
    "cancel_many": """select cancel_many('{{"created_before": "{moment}"}}')""",
    "statistics": "select statistics('{moment}')",
    "flow": "select flow('2031-01-01', '{moment}')",
    "create_token": "select create_token(gen_random_uuid(), 't', sha256(''), '{{submit}}', expires_at => '{moment}')",
    "prune": "select prune('{length}')",
    "prune_workers": "select prune_workers('{length}')",
    "verify": "select verify(slack => '{length}')",
}


@pytest.mark.parametrize("call", TIMES.values(), ids=TIMES)
def test_every_time_that_enters_is_one_of_the_calendar(session, call):
    for moment, length in (
        ("infinity", "178000000 years"),
        ("-infinity", "2147483647 days"),
        ("20000-01-01", "-5000 years"),
    ):
        refused(session, call.format(moment=moment, length=length))


@pytest.mark.parametrize(
    "call",
    [
        "select declare_kinds('{k}', array[%s])",
        "select start_worker('w', kinds => '{k}', lease_seconds => array[%s])",
        "select declare_tasks(jsonb_build_array(jsonb_build_object('kind', 'k', 'lease_seconds', %s)))",
        "select fail('w', gen_random_uuid(), 1, retry_after => %s)",
        "select fail('w', gen_random_uuid(), 1, retry_after => %s, outcome => 'snoozed')",
        "select statistics_add('w', 1, %s, '[]')",
    ],
)
@pytest.mark.parametrize("number", ["'NaN'::float8", "'infinity'::float8", "'-infinity'::float8", "1e300::float8"])
def test_a_number_of_seconds_is_finite(session, call, number):
    refused(session, call % number)


@pytest.mark.parametrize(
    "call",
    [
        "select start_worker(%s)",
        "select start_worker('w', queues => array[%s])",
        "select start_worker('w', kinds => array[%s])",
        "select declare_kinds(array[%s], array[30])",
        "select pause(%s)",
        "select resume(%s)",
        "select set_limit('queue', %s, 1)",
        "select drop_limit('kind', %s)",
        "select schedule_put(%s, 'k', every => '1 hour')",
        "select schedule_put('s', %s, every => '1 hour')",
        "select schedule_put('s', 'k', every => '1 hour', due_argument => %s)",
        "select schedule_put('s', 'k', cron => %s)",
        "select canary_start(%s)",
        "select create_token(gen_random_uuid(), %s, sha256(''), '{submit}')",
        "select create_token(gen_random_uuid(), 't', sha256(''), '{submit}', queues => array[%s])",
        "select create_token(gen_random_uuid(), 't', sha256(''), '{submit}', kinds => array[%s])",
        "select notify(array[%s])",
        "select claim(%s)",
        "select claim_job(gen_random_uuid(), %s)",
    ],
)
def test_every_name_that_enters_is_bounded(session, call):
    refused(session, call, "ä" * 1_000_000)


def test_what_people_and_tasks_say_is_cut_with_a_mark(session):
    """Their words are not what the call is for: it does its work, and they are cut."""
    long = "ä" * 100_000
    kept = "ä" * 994 + " [cut]"
    job = session.value("select enqueue('k')")
    session.one("pause", queue="elsewhere", reason=long, by=long)
    assert session.execute("select reason, length(paused_by) from queues").fetchone() == (kept, 200)
    session.one("resume", queue="elsewhere")
    assert session.one("claim_job", job_id=job, worker="w")
    lines = [
        [1.5, "INFO", long],
        [1, "INFO", "short"],
        "no line",
        [1, 2, 3],
        ["2030", "INFO", "x"],
        [1e300, "INFO", "y"],
    ]
    session.execute("select add_logs('w', %s, '{1}', null, %s)", [[job], [Jsonb(lines)]])
    assert session.value("select lines from job_logs") == [
        [1.5, "INFO", kept], [1, "INFO", "short"], ["2030", "INFO", "x"], [1e12, "INFO", "y"],
    ]  # fmt: skip
    assert session.one("cancel", id=job, why=long)
    assert session.job(job)["reason_detail"] == session.attempts(job)[0].error_message == kept
    session.one("start_worker", worker="w", host=long)
    assert session.value("select length(host) from workers") == 255


def test_log_lines_that_are_bombs_are_bounded(session):
    session.execute("set statement_timeout = '60s'")
    job = session.value("select enqueue('k')")
    assert session.one("claim_job", job_id=job, worker="w")
    bomb = BOMBS["large exponents"]
    deep = "(repeat('[', 3000) || repeat(']', 3000))"
    for line in ("""'[[1e131071, "INFO", "x"]]'""", f"jsonb_build_array({bomb} -> 'a')", deep):
        session.execute(f"select add_logs('w', array[%s], '{{1}}', null, array[{line}::jsonb])", [job])
    assert session.value("select length(lines::text) from job_logs") < 200


@pytest.mark.parametrize(
    "call",
    [
        "enqueue_batch('{\"kind\": \"k\"}', '[{}, {}]', ('[5:6]={' || uuidv7() || ',' || uuidv7() || '}')::uuid[])",
        "enqueue_batch('{\"kind\": \"k\"}', '[{}, {}]', array[array[uuidv7()], array[uuidv7()]])",
        "schedule_put('s', kind => 'k', every => '1 h', definition => '[1]')",
        "schedule_put('s', kind => 'k', every => '1 h', definition => '5')",
        "schedule_put('s', kind => 'k', every => '1 h', definition => '{\"tags\": 5}')",
        "schedule_put('s', kind => 'k', every => '1 h', definition => '{\"max_missed\": 1e10}')",
        'schedule_sync(\'[{"key": "s", "kind": "k", "every": "1 h", "tags": 5}]\')',
        "sweep(-5)",
        "promote(-1)",
        "enqueue('k', metadata => ('{\"a\":' || repeat('[', 64) || repeat(']', 64) || '}')::jsonb)",
    ],
)
def test_a_value_of_the_wrong_shape_is_refused_with_our_own_error(session, call):
    before = session.everything()
    with pytest.raises(psycopg.Error) as refused:
        session.execute(f"select * from {call}")
    assert (refused.value.sqlstate, refused.value.diag.message_primary) == ("LH003", "invalid_argument")
    assert session.everything() == before


def test_metadata_may_be_nested_as_deep_as_a_payload(session):
    session.execute("select enqueue('k', metadata => ('{\"a\":' || repeat('[', 63) || repeat(']', 63) || '}')::jsonb)")


@pytest.mark.parametrize("zeros", [900, 1100, 16000])
def test_a_number_has_at_most_a_thousand_digits_behind_the_point_too(session, zeros):
    enqueue = f"""select enqueue('k', ('{{"a": 1.' || repeat('0', {zeros}) || '}}')::jsonb)"""
    if zeros < 1000:
        session.execute(enqueue)
    else:
        with pytest.raises(psycopg.Error, match="invalid_argument") as refused:
            session.execute(enqueue)
        assert "has a number of more than 1000 digits" in refused.value.diag.message_detail
