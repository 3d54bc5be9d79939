"""Rows by the million, written straight into our table; its CHECKs hold them to what could really be there."""

import psycopg

PAYLOAD = "jsonb_build_object('i', g, 't', 0.0, 'to', 'someone@example.com')"

QUEUED = f"""insert into jobs (max_attempts, kind, payload, state) select 5, 'noop', {PAYLOAD}, 'queued'
    from generate_series(1, %s) g"""
FINISHED = f"""insert into jobs (max_attempts, kind, payload, state, attempt, claim_id, claimed_at, finished_at,
      finished_by)
    select 5, 'noop', {PAYLOAD}, 'success', 1, gen_random_uuid(), clock_timestamp(), clock_timestamp(),
      'host:1:ab12cd34' from generate_series(1, %s) g"""
FUTURE = f"""insert into jobs (max_attempts, kind, payload, state, run_at)
    select 5, 'noop', {PAYLOAD}, 'created', clock_timestamp() + interval '1 day' + g * interval '1 ms'
    from generate_series(1, %s) g"""
OTHER_KINDS = f"""insert into jobs (max_attempts, kind, payload, state)
    select 5, 'other' || g %% 10, {PAYLOAD}, 'queued' from generate_series(1, %s) g"""
MANY_QUEUES = f"""insert into jobs (max_attempts, queue, kind, payload, state)
    select 5, 'queue' || g %% 1000, 'noop', {PAYLOAD}, 'queued' from generate_series(1, %s) g"""
KEYED = f"""insert into jobs (max_attempts, kind, payload, state, exclusive_key)
    select 5, 'noop', {PAYLOAD}, 'queued', 'busy' from generate_series(1, %s) g"""
LIMITED = f"""insert into jobs (max_attempts, queue, kind, payload, state) select 5, 'full', 'noop', {PAYLOAD}, 'queued'
    from generate_series(1, %s) g"""


def fill(connection: psycopg.Connection, statement: str, rows: int, *, step: int = 250_000) -> None:
    """Some rows at a time: one statement for ten million would swell the WAL before any checkpoint."""
    while rows > 0:
        connection.execute(statement.encode(), [min(rows, step)])
        rows -= step
    connection.execute("vacuum analyze jobs")


def drop_noise(connection: psycopg.Connection) -> None:
    """Autovacuum of this table only when the suite says so: it would hit one side and not the other."""
    connection.execute("alter table jobs set (autovacuum_enabled = off)")
