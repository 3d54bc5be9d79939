"""What the SQL core must not do to its surroundings: to a caller's transaction, to publications, to sessions."""

import re
from collections import Counter
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from leasehold.db.migrations import files

SOURCES = Path(files.__file__).parents[1] / "sql" / "functions"
ROOT = Path(__file__).parents[2]


def test_no_function_is_compiled_just_in_time(session):
    """PostgreSQL before 18 would compile what enable_seqscan = off makes dear: a hundred times as long as the query."""
    compiled = (
        "select proname from pg_proc where pronamespace = 'leasehold'::regnamespace and proname ~ '_v[0-9]+$'"
        " and not 'jit=off' = any(coalesce(proconfig, '{}'))"
    )
    assert session.values(compiled) == []


def test_every_table_has_a_primary_key(session):
    missing = (
        "select c.relname::text from pg_class c"
        " where c.relnamespace = 'leasehold'::regnamespace and c.relkind in ('r', 'p')"
        " and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)"
    )
    assert session.values(missing) == []


def test_a_publication_for_all_tables_stops_no_call(db, session):
    """Debezium, logical replication, upgrades: what has no replica identity cannot be deleted or updated."""
    session.execute("create publication everything for all tables")
    session.one("set_limit", scope="key", name="x", max_running=1)
    session.one("history", enabled=True)
    jobs = [session.one("enqueue", kind="k", exclusive_key=key) for key in ("x1", "x1", "x2", "y")]
    running = session.rows("claim", worker="w", count=10, claim_id=uuid4())
    parked = session.values("select id from jobs where parked")
    assert len(running) + len(parked) == len(jobs)
    with db.connect() as other, other.transaction():  # so that a key has to be noted for later
        other.execute("select from jobs where id = any(%s) for update", [parked])
        session.column("complete", worker="w", ids=[job.id for job in running], attempts=[1] * len(running))
    assert session.value("select count(*) from unpark_later") > 0
    session.rows("upkeep", max=1000, worker="w")
    assert session.value("select count(*) from unpark_later") == 0
    while more := session.rows("claim", worker="w", count=10, claim_id=uuid4()):
        assert session.one("fail", worker="w", id=more[0].id, attempt=more[0].attempt, fatal=True) == "dead"
        session.column("complete", worker="w", ids=[job.id for job in more[1:]], attempts=[1] * len(more[1:]))
    session.rows("drop_limit", scope="key", name="x")
    session.rows("prune", older_than="0 seconds", states=["success", "dead"])
    assert session.value("select count(*) from jobs") == 0


def test_a_notification_leaves_the_callers_transaction_as_durable_as_it_was(session):
    session.execute("set synchronous_commit = on")
    with session.transaction():
        session.one("enqueue", kind="k")
        session.one("notify", names=["default"])
        assert session.value("show synchronous_commit") == "on"


def test_a_notification_for_a_name_that_no_queue_can_have_is_refused(session):
    with pytest.raises(psycopg.Error) as refused:
        session.one("notify", names=["x" * 10_000])
    assert refused.value.sqlstate == "LH003"


def test_strings_of_functions_hold_no_backslash():
    """Where standard_conforming_strings is off a backslash in a string means something else."""
    for file in SOURCES.glob("*.sql"):
        code = re.sub(r"--[^\n]*", "", file.read_text())
        assert "\\" not in code, file.name


@pytest.mark.filterwarnings("ignore")
def test_functions_work_without_standard_conforming_strings(session):
    session.execute("set standard_conforming_strings = off")
    session.execute("set escape_string_warning = off")
    jobs = [{"kind": "k", "run_at": "2031-01-31T12:00:00.5+01:00", "priority": -5, "max_attempts": 3}, {"kind": "k"}]
    answers = session.rows("submit_many", jobs=Jsonb([*jobs, {"kind": "k", "run_at": "2031-02-31T12:00:00Z"}]))
    assert [answer.error for answer in answers] == [None, None, "LH003"]
    assert session.one("schedule_put", key="s", kind="k", cron="*/5 * * * 1-5")
    with pytest.raises(psycopg.Error, match="invalid_argument"):
        session.one("schedule_put", key="s", kind="k", cron="every day")
    session.rows("doctor")


@pytest.mark.parametrize("run_at", ["infinity", "-infinity"])
def test_a_job_that_an_older_release_recorded_for_infinity_ends_no_worker(db, session, run_at):
    db.insert(session, 1, state="'created'", run_at=f"'{run_at}'")
    assert session.one("next_due") == (None if run_at == "infinity" else 0)
    assert session.rows("upkeep", max=10)
    session.one("enqueue", kind="k")
    session.execute("select count(*) from claim('w', count => 5)")
    assert 0 < session.one("next_due") <= 15


def test_the_next_due_time_is_read_from_the_ends_of_indexes(db, session):
    """Whatever the statistics say: some were taken when there was nothing."""
    session.execute("alter table jobs set (autovacuum_enabled = off)")
    session.execute("analyze jobs")
    db.insert(session, 20_000, state="'created'", run_at="clock() + interval '1 day' + n * interval '1 second'")
    db.insert(
        session, 2_000, state="'running'", queue="'q' || n % 3", attempt="1", lease_owner="'w'",
        lease_expires_at="clock() + interval '1 hour'", claimed_at="clock()",
    )  # fmt: skip
    for analyzed in (False, True):
        if analyzed:
            session.execute("analyze jobs")
        with session.transaction():
            before = session.value(
                "select idx_tup_fetch + seq_tup_read from pg_stat_xact_user_tables where relname = 'jobs'"
            )
            assert 3500 < session.one("next_due") <= 3600
            after = session.value(
                "select idx_tup_fetch + seq_tup_read from pg_stat_xact_user_tables where relname = 'jobs'"
            )
            assert after - before < 50


def test_claim_job_repeated_with_its_claim_id_returns_the_same_answer(session):
    job, claim_id = session.one("enqueue", kind="k"), uuid4()
    assert session.one("claim_job", job_id=job, worker="w", claim_id=claim_id)
    before = session.job(job)
    assert session.one("claim_job", job_id=job, worker="w", claim_id=claim_id)
    assert session.job(job) == before
    assert not session.one("claim_job", job_id=job, worker="v", claim_id=claim_id)
    assert not session.one("claim_job", job_id=job, worker="w", claim_id=uuid4())
    assert not session.one("claim_job", job_id=job, worker="w")
    session.execute("update jobs set lease_expires_at = clock() where id = %s", [job])
    assert not session.one("claim_job", job_id=job, worker="w", claim_id=claim_id)


@pytest.mark.parametrize(
    "lanes",
    [
        {}, "x", [1], ["q"], [{}], [{"queue": "q"}], [{"queue": "q", "kind": None}], [{"queue": 1, "kind": "k"}],
        [{"queue": "q", "kind": "k", "priority": "high"}], [{"queue": "q", "kind": "k", "priority": 99_999}],
        [{"queue": "q", "kind": "k", "priority": 1.5}], [{"queue": "q", "kind": "k", "id": "no"}],
        [{"queue": "q", "kind": "k", "id": 1}], [{"queue": "q", "kind": "k", "queue_room": "x"}],
        [{"queue": "q", "kind": "k"}] * 10_001,
    ],
)  # fmt: skip
def test_lanes_that_are_none_are_refused(session, lanes):
    with pytest.raises(psycopg.Error) as refused:
        session.rows("claim", worker="w", lanes=Jsonb(lanes))
    assert (refused.value.sqlstate, refused.value.diag.message_primary) == ("LH003", "invalid_argument")


def words_of(*patterns: str) -> Counter[str]:
    """How often each word stands in the files, comments of SQL aside."""
    texts = (file.read_text() for pattern in patterns for file in ROOT.glob(pattern))
    return Counter(word for text in texts for word in re.findall(r"[A-Za-z_0-9]+", re.sub(r"--[^\n]*", "", text)))


def test_every_function_has_a_caller_or_is_documented():
    """A public one is called by our programs or named in the docs, any other by SQL or, as a fact, by Python."""
    code, programs, docs = words_of("leasehold/db/sql/**/*.sql"), words_of("leasehold/**/*.py"), words_of("docs/*.md")
    made = Counter(
        name
        for file in SOURCES.glob("*.sql")
        for name in re.findall(r"create or replace function (\w+)", file.read_text())
    )
    assert len(made) > 100
    for name in made:
        public = re.sub(r"_v[0-9]+$", "", name)
        called = (
            programs[name] or programs[name.upper()] or (docs[public] if public != name else code[name] > made[name])
        )
        assert called, f"nothing calls {name}"
