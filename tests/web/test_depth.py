"""No page reads a table whole, however many jobs there are, and each is quick."""

import os
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest

from tests.http.conftest import connect
from tests.web.serving import Site, serving

FULL = os.environ.get("LEASEHOLD_SURVIVAL") == "full"
DEPTH = 1_000_000 if FULL else 20_000
SCREENS = (
    "/", "/queues", "/jobs", "/jobs?state=queued", "/jobs?state=running", "/jobs?state=retry", "/jobs?state=dead",
    "/jobs?state=success", "/jobs?state=created", "/jobs?kind=nobody", "/jobs?state=dead&tag=none",
    "/jobs?error=shop.NoSuchError", "/errors", "/workers", "/schedules", "/system", "/data/statistics", "JOB",
)  # fmt: skip

FILL = """
insert into jobs (max_attempts, kind, queue, state, run_at, attempt, retry_count, lease_owner, lease_expires_at,
  claim_id, claimed_at, finished_at, finished_by, reason)
select 5, 'k' || g %% 7, 'q' || g %% 5, s.state::job_state,
  clock_timestamp() + case when s.state in ('created', 'retry') then interval '1 day' else '0' end,
  case when s.state = 'queued' or s.state = 'created' then 0 else 1 end, case s.state when 'retry' then 1 else 0 end,
  case s.state when 'running' then 'other' end,
  case s.state when 'running' then clock_timestamp() + interval '1 hour' end,
  gen_random_uuid(), clock_timestamp(),
  case when s.state in ('success', 'dead') then clock_timestamp() - g * interval '1 second' end,
  case when s.state in ('success', 'dead') then 'other' end, case s.state when 'dead' then 'exhausted' end
from generate_series(1, %s) g
cross join lateral (select case when g %% 100 = 0 then 'running' when g %% 100 = 1 then 'retry'
  when g %% 100 = 2 then 'created' when g %% 100 < 20 then 'queued' when g %% 100 < 30 then 'dead' else 'success' end
  as state) s
"""


@pytest.fixture(scope="module")
def deep(admin: Any, migrated: str) -> Iterator[Site]:
    """A server on a database with many jobs, whose every statement's plan is kept."""
    with admin.database(template=migrated) as name:
        dsn = admin.server.dsn(name)
        with connect(dsn) as sql:
            sql.execute("set session_replication_role = replica")
            sql.execute(FILL, [DEPTH])
            sql.execute(
                "insert into attempts (job_id, attempt, worker, outcome, claimed_at, ended_at, error_class)"
                " select id, 1, 'other', 'failed', claimed_at, claimed_at, 'shop.Error' from jobs where state = 'dead'"
            )
            sql.execute("analyze")
        with serving(dsn) as site:
            yield site


def scans(dsn: str) -> dict[str, int]:
    """How often each large table was read whole."""
    with connect(dsn) as sql:
        sql.execute("select pg_stat_force_next_flush()")
        rows = sql.execute(
            "select relname, seq_scan from pg_stat_user_tables where relname in ('jobs', 'attempts')"
        ).fetchall()
    return {row["relname"]: row["seq_scan"] for row in rows}


def test_no_page_reads_a_table_whole_and_each_is_quick(deep: Site) -> None:
    with connect(deep.dsn) as sql:
        row = sql.execute("select id from jobs where state = 'dead' order by id limit 1").fetchone()
    assert row is not None
    before = _settled(deep.dsn)
    slow = {}
    with httpx.Client(base_url=f"{deep.url}/dashboard", timeout=60) as http:
        for screen in SCREENS:
            path = f"/jobs/{row['id']}" if screen == "JOB" else screen
            http.get(path)  # plans are made, connections opened
            tries = []
            for _ in range(3 if FULL else 1):
                if FULL:
                    time.sleep(2.1)  # what is kept for a moment is no longer good
                begin = time.perf_counter()
                answer = http.get(path)
                tries.append(time.perf_counter() - begin)
                assert answer.status_code == 200, f"{screen}: {answer.text}"
            took = min(tries)
            if took > (0.1 if FULL else 5.0):
                slow[screen] = took
    assert _settled(deep.dsn) == before
    assert slow == {}


def test_a_whole_read_would_be_noticed(deep: Site) -> None:
    before = _settled(deep.dsn)
    with psycopg.connect(deep.dsn, autocommit=True) as other:
        other.execute("set enable_indexscan = off; set enable_bitmapscan = off; set enable_indexonlyscan = off")
        other.execute("select count(*) from leasehold.jobs")
    assert _settled(deep.dsn)["jobs"] > before["jobs"]


def _settled(dsn: str) -> dict[str, int]:
    """The counts once every session has reported its own: each does so within a second of its last statement."""
    known, deadline = scans(dsn), time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(1.2)
        again = scans(dsn)
        if again == known:
            return again
        known = again
    raise AssertionError("the counts never settle")
