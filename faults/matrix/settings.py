"""Settings that a DBA may change, for a role, a database or a server, times what a fleet does: it works, or it is named.

A row is a setting of a role; a worker, commands and a migration run as this role (`fleetlet.py`). Where one of them fails,
its error and `leasehold doctor` have to name the setting. Several roles with other settings are tried at once.
"""

import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from uuid import uuid4

import psycopg
from psycopg import sql

from faults.matrix.fleetlet import COLUMNS, Fleetlet
from faults.matrix.table import NotApplicable, Result, Table, chosen, together
from faults.matrix.world import APP, LONG, World
from faults.run import Run
from faults.waiting import until

ROWS: Final = (
    # how long things may take
    "statement_timeout=1s", "statement_timeout=50ms", "lock_timeout=10ms", "lock_timeout=1s", "idle_in_transaction_session_timeout=100ms",
    "idle_session_timeout=1s", "transaction_timeout=1s", "deadlock_timeout=1ms", "tcp_keepalives_idle=1", "tcp_keepalives_interval=1",
    "tcp_keepalives_count=1", "tcp_user_timeout=1000", "client_connection_check_interval=100ms",
    # transactions
    "default_transaction_isolation=serializable", "default_transaction_isolation=repeatable read", "default_transaction_isolation=read uncommitted",
    "default_transaction_deferrable=on", "default_transaction_read_only=on", "synchronous_commit=off", "synchronous_commit=local",
    "session_replication_role=replica", "commit_delay=1000",
    # how values look
    "DateStyle=German, DMY", "DateStyle=SQL, MDY", "DateStyle=Postgres, YMD", "IntervalStyle=sql_standard", "IntervalStyle=iso_8601",
    "IntervalStyle=postgres_verbose", "TimeZone=Asia/Kathmandu", "TimeZone=America/St_Johns", "TimeZone=Pacific/Apia", "TimeZone=<+03>-03",
    "timezone_abbreviations=India", "bytea_output=escape", "extra_float_digits=-15", "client_encoding=LATIN1", "client_encoding=SQL_ASCII",
    "standard_conforming_strings=off", "backslash_quote=off", "escape_string_warning=on", "quote_all_identifiers=on", "array_nulls=off",
    "transform_null_equals=on", "xmloption=document", "xmlbinary=hex", "lc_monetary=C", "lc_numeric=C", "lc_time=C", "lc_messages=C",
    # names and rights
    "search_path=", "search_path=public", "search_path=pg_catalog, nowhere", "row_security=off", "check_function_bodies=off",
    "default_table_access_method=heap", "default_tablespace=", "default_toast_compression=pglz", "createrole_self_grant=set",
    "application_name=payroll", "password_encryption=md5", "event_triggers=off", "restrict_nonsystem_relation_kind=view",
    # plans
    "plan_cache_mode=force_generic_plan", "plan_cache_mode=force_custom_plan", "enable_seqscan=off", "enable_indexscan=off",
    "enable_indexonlyscan=off", "enable_bitmapscan=off", "enable_hashjoin=off", "enable_nestloop=off", "enable_mergejoin=off", "enable_sort=off",
    "enable_material=off", "enable_hashagg=off", "enable_memoize=off", "enable_incremental_sort=off", "enable_tidscan=off",
    "random_page_cost=10000", "seq_page_cost=0", "cpu_tuple_cost=1000", "effective_cache_size=8kB", "from_collapse_limit=1",
    "join_collapse_limit=1", "geqo_threshold=2", "constraint_exclusion=on", "cursor_tuple_fraction=0", "jit=on", "jit_above_cost=0",
    "debug_parallel_query=on", "max_parallel_workers_per_gather=0", "parallel_setup_cost=0", "min_parallel_table_scan_size=0",
    "default_statistics_target=1", "recursive_worktable_factor=0.001",
    # memory
    "work_mem=64kB", "maintenance_work_mem=1MB", "hash_mem_multiplier=1", "temp_buffers=800kB", "temp_file_limit=0", "max_stack_depth=100kB",
    "logical_decoding_work_mem=64kB", "gin_pending_list_limit=64kB", "backend_flush_after=8kB", "wal_compression=on",
    # what is written down
    "log_statement=all", "log_min_duration_statement=0", "log_duration=on", "log_error_verbosity=verbose", "log_lock_waits=on",
    "client_min_messages=debug1", "client_min_messages=error", "debug_print_plan=on", "track_activities=off", "track_counts=off", "track_functions=all",
    "track_io_timing=on", "compute_query_id=on", "stats_fetch_consistency=snapshot", "log_parser_stats=on", "vacuum_cost_delay=10",
)  # fmt: skip

HARSH: Final = (
    "statement_timeout=1s", "lock_timeout=10ms", "idle_in_transaction_session_timeout=100ms", "idle_session_timeout=1s", "transaction_timeout=1s",
    "tcp_user_timeout=1000", "client_connection_check_interval=100ms",
)  # fmt: skip

ALONE: Final = ("default_transaction_read_only=on", "restrict_nonsystem_relation_kind=view")
"""With them something cannot work: they have to be named."""

LANES: Final = 3
"""Roles at once."""

TICKS: Final = 8
"""Schedules: each worker is to fire one soon."""


def settings(run: Run) -> None:
    """The matrix."""
    run.fleet.fork()
    world = World(run, "--queues", "none", workers=0, ticks=TICKS)
    note_who_fires(world)
    table = Table(rows=len(ROWS), columns=len(COLUMNS))
    known = {name for (name,) in world.rows("select lower(name) from pg_settings")}
    rows = chosen(ROWS)
    missing = [row for row in rows if row.partition("=")[0].lower() not in known]
    present = [row for row in rows if row not in missing]
    waiting: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
    for pack in packs(present, 1 if run.full else 40):
        waiting.put(pack)
    with ThreadPoolExecutor(LANES) as pool:
        for lane in [pool.submit(drive, world, waiting, table) for _ in range(LANES)]:
            lane.result()
    table.add(
        {(row, column): NotApplicable("this PostgreSQL has no such setting") for row in missing for column in COLUMNS}
    )
    # One that sweeps what the killed ones have left: PostgreSQL may carry out a claim whose worker is dead already.
    last = run.fleet.worker("last", world.server.dsn, "--queues", "default", app=APP, **world.env).start()
    started = "select exists (select from workers where pid = %s)"
    until(lambda: bool(world.value(started, last.pid)), "the last worker starts", within=LONG)
    world.rows("select schedule_disable(key) from schedules")
    world.rows("select cancel(id) from jobs where state in ('created', 'queued', 'retry')")
    world.settle()
    table.close(run)


def note_who_fires(world: World) -> None:
    """Write down as which role a schedule was fired, for any worker may fire any of them; and every change of a job."""
    world.rows("create table public.firing (by text)")
    world.rows("grant insert on public.firing to public")
    world.rows(
        "create function public.note_firing() returns trigger language plpgsql as"
        " $$ begin insert into public.firing values (session_user); return null; end $$"
    )
    world.rows(
        "create trigger note_firing after insert on jobs for each row when (new.kind = 'tick')"
        " execute function public.note_firing()"
    )
    for trigger in ("note_firing", "jobs_note_recorded", "jobs_note_changed"):  # also under session_replication_role
        world.rows(f"alter table jobs enable always trigger {trigger}")


def drive(world: World, waiting: "queue.SimpleQueue[list[str]]", table: Table) -> None:
    """One pack after the other."""
    while True:
        try:
            pack = waiting.get_nowait()
        except queue.Empty:
            return
        for found in together([pack], lambda part: probe(world, part)):
            table.add(found, world.run.folder)


def packs(rows: Sequence[str], size: int) -> list[list[str]]:
    """So many rows at once, each setting once in a pack; those that leave little room for anything else by themselves."""
    found: list[list[str]] = [[]]
    for row in sorted(rows, key=lambda row: row not in HARSH):
        name = row.partition("=")[0]
        for pack in found:
            fits = len(pack) < size and name not in {other.partition("=")[0] for other in pack}
            if not pack or (
                fits and (pack[0] in HARSH) == (row in HARSH) and row not in ALONE and pack[0] not in ALONE
            ):
                pack.append(row)
                break
        else:
            found.append([row])
    return found


def probe(world: World, rows: Sequence[str]) -> dict[tuple[str, str], Result]:
    """A fleet whose role has these settings."""
    role = f"role_{uuid4().hex[:8]}"
    world.change(sql.SQL("create role {} login superuser").format(sql.Identifier(role)))
    given = {}
    for row in rows:
        name, _, value = row.partition("=")
        try:
            set_it(world, role, name, value)
        except psycopg.Error as error:
            if len(rows) == 1:
                reason = NotApplicable(f"cannot be set: {error.diag.message_primary}")
                return {(row, column): reason for column in COLUMNS}
            continue
        given[name.lower()] = row
    fleet = Fleetlet(world, role, [row.partition("=")[0] for row in given.values()])
    try:
        why = fleet.judge()
    finally:
        fleet.close()
    with (world.run.folder / "probes.txt").open("a") as file:
        file.write(f"{list(given.values())}: { {column: reason for column, reason in why.items() if reason} }\n")
    return {(row, column): why[column] for row in given.values() for column in COLUMNS}


def set_it(world: World, role: str, name: str, value: str) -> None:
    """Set it for the role; a list of schemas is a list."""
    if name == "search_path":
        parts = [part.strip() for part in value.split(",")]
        text = sql.SQL(", ").join(map(sql.Literal, parts))
    else:
        text = sql.Literal(value)
    world.change(sql.SQL("alter role {} set {} = {}").format(sql.Identifier(role), sql.Identifier(name), text))
