"""Which indexes the functions use, on empty, deep and bloated tables, whatever the statistics say.

auto_explain reports the plan of every statement inside a function. A statement that reads the whole table, or a whole
index that grows with history, is a defect here even where the table is small enough for it to be quick.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest

DEEP = 20_000
BATCH = 50

FILL = """
insert into jobs (max_attempts, kind, queue, state, run_at, attempt, retry_count, lease_owner, lease_expires_at,
  claim_id, claimed_at, finished_at, finished_by)
select 5, 'k' || g %% 3, 'q' || g %% 2, s.state::job_state,
  clock_timestamp() + case when s.state in ('created', 'retry') then interval '1 day' else '0' end,
  case when s.state in ('running', 'success', 'retry') then 1 else 0 end, case s.state when 'retry' then 1 else 0 end,
  case s.state when 'running' then 'other' end,
  case s.state when 'running' then clock_timestamp() + interval '1 hour' end,
  gen_random_uuid(), clock_timestamp(), case s.state when 'success' then clock_timestamp() end,
  case s.state when 'success' then 'other' end
from generate_series(1, %s) g
cross join lateral (select (array['queued', 'created', 'success', 'retry'])[1 + g %% 4] as state) s
"""
CHURN = """
with taken as (update jobs set state = 'running', attempt = attempt + 1, lease_owner = 'churn',
  lease_expires_at = clock_timestamp() + interval '1 hour', claimed_at = clock_timestamp()
  where state = 'queued' returning id)
select count(*) from taken
"""
BACK = """
update jobs set state = 'queued', lease_owner = null, lease_expires_at = null where state = 'running'
"""


class Plans(psycopg.Connection[Any]):
    """A session that hears how each of its statements was run."""

    heard: list[dict[str, Any]]

    def nodes(self) -> Iterator[dict[str, Any]]:
        """Every node that read the table of jobs, since it was last asked."""
        heard, self.heard[:] = list(self.heard), []
        todo = [plan["Plan"] for plan in heard]
        while todo:
            node = todo.pop()
            todo += node.get("Plans", [])
            if node.get("Relation Name") == "jobs" or node.get("Index Name", "").startswith("jobs_"):
                yield node

    def used(self) -> dict[str, int]:
        """The indexes of jobs that were read, each with the most rows that one scan read, needed or not."""
        found: dict[str, int] = {}
        for node in self.nodes():
            if node["Node Type"] in {"ModifyTable", "Bitmap Heap Scan"}:  # what is below it shows how it was found
                continue
            if node["Actual Loops"] == 0:  # it was planned and not needed
                continue
            name = node.get("Index Name", node["Node Type"])
            rows = round(node["Actual Rows"] * node["Actual Loops"]) + node.get("Rows Removed by Filter", 0)
            found[name] = max(found.get(name, 0), rows)
        return found


@contextmanager
def listening(dsn: str) -> Iterator[Plans]:
    with Plans.connect(dsn, autocommit=True, options="-c search_path=leasehold,public") as connection:
        try:
            connection.execute("load 'auto_explain'")
        except psycopg.errors.UndefinedFile:
            pytest.skip("this PostgreSQL comes without auto_explain")
        connection.heard = []
        connection.add_notice_handler(lambda notice: _hear(connection, notice.message_primary or ""))
        for name, value in {
            "auto_explain.log_min_duration": "0",
            "auto_explain.log_nested_statements": "on",
            "auto_explain.log_analyze": "on",
            "auto_explain.log_format": "json",
            "auto_explain.log_level": "notice",
        }.items():
            connection.execute("select set_config(%s, %s, false)", [name, value])
        connection.heard.clear()
        yield connection


def _hear(connection: Plans, message: str) -> None:
    _, _, plan = message.partition("plan:\n")
    if plan:
        connection.heard.append(json.loads(plan))


@pytest.fixture(params=["empty", "deep, stale statistics", "deep, fresh statistics", "bloated"])
def table(request: pytest.FixtureRequest, dsn: str) -> str:
    """A table of jobs in one of its conditions; vacuum never comes."""
    with psycopg.connect(dsn, autocommit=True, options="-c search_path=leasehold,public") as connection:
        connection.execute("alter table jobs set (autovacuum_enabled = off)")
        connection.execute("analyze jobs")  # stale means: taken when it was empty
        if request.param != "empty":
            connection.execute(FILL, [DEEP])
        if "fresh" in request.param:
            connection.execute("analyze jobs")
        if request.param == "bloated":
            with psycopg.connect(dsn) as holder:  # whose snapshot keeps every dead row
                holder.execute("set transaction isolation level repeatable read")
                holder.execute("select 1")
                for _ in range(3):
                    connection.execute(CHURN)
                    connection.execute(BACK)
    return dsn


def claimed(session: Plans) -> tuple[list[UUID], list[int]]:
    rows = session.execute(
        "select id, attempt from claim('me', array['q0', 'q1'], array['k0', 'k1', 'k2'], %s, gen_random_uuid())",
        [BATCH],
    ).fetchall()
    return [row[0] for row in rows], [row[1] for row in rows]


def enqueue(session: Plans) -> None:
    for n in range(BATCH):
        session.execute("select enqueue(%s, queue => %s)", [f"k{n % 3}", f"q{n % 2}"])
    session.heard.clear()


def test_a_claim_reads_the_runnable_index_and_the_rows_that_it_takes(table: str) -> None:
    with listening(table) as session:
        enqueue(session)
        ids, _ = claimed(session)
        used = session.used()
    assert len(ids) == BATCH
    assert used.keys() <= {"jobs_runnable", "jobs_pkey"}
    assert max(used.values()) <= 20 * BATCH


def test_a_finish_a_heartbeat_and_a_release_read_their_own_rows_by_id(table: str) -> None:
    with listening(table) as session:
        enqueue(session)
        for call in (
            "select * from heartbeat('me', %s, %s)",
            "select * from complete('me', %s, %s)",
            "select * from release('me', %s, %s)",
        ):
            ids, attempts = claimed(session)
            session.heard.clear()
            session.execute(call, [ids, attempts])
            used = session.used()
            assert used.keys() == {"jobs_pkey"}, call
            assert max(used.values()) <= 2 * BATCH, call
            session.execute("select count(*) from release('me', %s, %s)", [ids, attempts])


def test_a_failure_is_written_by_id(table: str) -> None:
    with listening(table) as session:
        enqueue(session)
        ids, attempts = claimed(session)
        session.heard.clear()
        report = [{"id": str(i), "attempt": a, "outcome": "failed"} for i, a in zip(ids, attempts, strict=True)]
        session.execute("select * from fail_many('me', %s)", [json.dumps(report)])
        used = session.used()
    assert used.keys() == {"jobs_pkey"}
    assert max(used.values()) <= 2 * BATCH


def test_a_sweep_reads_leases_and_what_has_expired(table: str) -> None:
    with listening(table) as session:
        enqueue(session)
        claimed(session)
        session.execute(
            "update jobs set lease_expires_at = clock_timestamp() - interval '1 s' where lease_owner = 'me'"
        )
        session.heard.clear()
        assert session.execute("select sweep()").fetchone() == (BATCH,)
        used = session.used()
    assert used.pop("jobs_parked_under", 0) == 0  # looked at as well, and empty
    assert used.keys() <= {"jobs_lease", "jobs_pkey"}
    assert max(used.values()) <= 20 * BATCH  # dead versions of the same rows included


def test_a_promotion_reads_what_is_due(table: str) -> None:
    with listening(table) as session:
        for _ in range(BATCH):
            session.execute("select enqueue('k0', run_at => clock_timestamp() + interval '0.05 s')")
        session.execute("select pg_sleep(0.2)")
        session.heard.clear()
        assert session.execute("select promote()").fetchone() == (BATCH,)
        used = session.used()
    assert used.keys() <= {"jobs_due", "jobs_pkey"}
    assert max(used.values()) <= 2 * BATCH


def test_a_bulk_change_reads_what_may_fit_and_no_history(table: str) -> None:
    with listening(table) as session:
        cursor = None
        for _ in range(3):
            found = session.execute(
                "select capped, cursor_here from cancel_many(%s, dry_run => true, scan => %s, cursor => %s)",
                ['{"kind": "none", "state": ["created", "retry", "queued", "running"]}', BATCH, cursor],
            ).fetchone()
            assert found is not None
            cursor = found[1]
        used = session.used()
    waiting = {"jobs_due", "jobs_runnable", "jobs_exclusive_waiting", "jobs_parked", "jobs_lease"}
    assert used.keys() <= {*waiting, "jobs_pkey"}
    assert max(used.values(), default=0) <= 20 * BATCH


def test_a_lookup_by_idempotency_key_or_id_reads_one_row(table: str) -> None:
    with listening(table) as session:
        job = session.execute("select enqueue('k0', idempotency_key => 'one')").fetchone()
        session.heard.clear()
        assert session.execute("select enqueue('k0', idempotency_key => 'one')").fetchone() == job
        assert session.used() == {"jobs_idempotency_key": 1}
        assert job is not None
        session.execute("select * from status(%s)", [job[0]])
        assert session.used() == {"jobs_pkey": 1}
