"""Settings that a DBA may change, for a role, a database or a server, times what a fleet does: it works, or it is named.

A row is a setting of a role; a worker, commands and a migration run as this role. Where one of them fails, its error and
`leasehold doctor` have to name the setting.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final
from uuid import uuid4

import psycopg
from psycopg import sql

from faults.fleet import Member
from faults.matrix.commands import command
from faults.matrix.table import PASSED, NotApplicable, Result, Table, chosen, together
from faults.matrix.world import APP, World
from faults.run import Run
from leasehold.db.migrate import migrate
from leasehold.errors import LeaseholdError

COLUMNS: Final = ("start", "claim", "renew", "report", "schedule", "limits", "lists", "migrate")

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

ALONE: Final = ("default_transaction_read_only=on",)
"""Nothing works with them: they have to be named."""

LISTS: Final = (
    ["jobs", "list"], ["queues", "list"], ["workers", "list"], ["schedules", "list"], ["limits", "list"], ["stats"], ["errors"], ["verify"],
)  # fmt: skip
"""Commands that only look."""

SOON: Final = 15.0


def settings(run: Run) -> None:
    """The matrix."""
    world = World(run, "--queues", "none", workers=0)
    table = Table(rows=len(ROWS), columns=len(COLUMNS))
    known = {name for (name,) in world.rows("select lower(name) from pg_settings")}
    rows = chosen(ROWS)
    missing = [row for row in rows if row.partition("=")[0].lower() not in known]
    present = [row for row in rows if row not in missing]
    for found in together(packs(present, 1 if run.full else 40), lambda part: probe(world, part)):
        table.add(found, run.folder)
    table.add(
        {(row, column): NotApplicable("this PostgreSQL has no such setting") for row in missing for column in COLUMNS}
    )
    world.settle()
    table.close(run)


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
    world.sql.execute(sql.SQL("create role {} login superuser").format(sql.Identifier(role)))
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
    world.sql.execute(sql.SQL("alter role {} set {} = {}").format(sql.Identifier(role), sql.Identifier(name), text))


class Fleetlet:
    """A worker, commands and a migration, all as one role."""

    def __init__(self, world: World, role: str, names: list[str]) -> None:
        self._world = world
        self._names = names
        self._queue = role
        self._dsn = world.server.embedded.dsn("faults").replace("//postgres@", f"//{role}@")
        self._doctor: str | None = None
        self._held = world.enqueue("hold", {"until": role}, queue=role)
        self._jobs: list[str] = []
        self._worker: Member = world.run.fleet.worker(
            role, self._dsn, "--queues", f"{role},default", app=APP, FAULTS_EVERY="1"
        )

    def close(self) -> None:
        """End the worker; what it had is anybody's."""
        world = self._world
        world.let_go(self._queue)
        if self._worker.alive:
            self._worker.kill()
        world.run.fleet.members.remove(self._worker)
        world.rows("update jobs set lease_expires_at = clock() - interval '1 s' where state = 'running'")
        world.rows("select sweep()")
        world.rows("select cancel(id) from jobs where state in ('created', 'queued', 'retry')")

    def judge(self) -> dict[str, str]:
        """Each column's reason, or none."""
        acts: dict[str, Callable[[], str]] = {
            "start": self._start, "claim": self._claim, "renew": self._renew, "report": self._report,
            "schedule": self._schedule, "limits": self._limits, "lists": self._lists, "migrate": self._migrate,
        }  # fmt: skip
        found = {}
        for column, act in acts.items():
            try:
                why = act() if column in ("start", "lists", "migrate") or self._worker.alive else "the worker has ended"
            except (psycopg.Error, LeaseholdError, TimeoutError) as error:
                why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            found[column] = why and self._unless_named(why)
        if not self._worker.alive:
            found["start"] = found["start"] or self._unless_named(f"the worker ended: {self._worker.said()[-300:]}")
        return found

    def _unless_named(self, why: str) -> str:
        """It may fail where error (or log) and doctor name the setting."""
        said = f"{why} {self._worker.said()}".lower()
        if any(name.lower() in said for name in self._names):
            if self._doctor is None:
                self._doctor = command(["doctor", "--listen", "0.5", "--dsn", self._dsn])[1].lower()
            if any(name.lower() in self._doctor for name in self._names):
                return PASSED
            return f"doctor does not name it: {why}"
        return why

    def _start(self) -> str:
        self._worker.start()
        world, pid = self._world, self._worker.pid
        query = "select exists (select from workers where pid = %s and kinds @> array['hold'])"
        deadline = time.monotonic() + 2 * SOON
        while not world.value(query, pid):
            if not self._worker.alive or time.monotonic() > deadline:
                return f"the worker does not start ({self._worker.returncode}): {self._worker.said()[-300:]}"
            time.sleep(0.03)
        return PASSED

    def _claim(self) -> str:
        code, text = command(["enqueue", "quick", "--queue", self._queue, "--anyway", "--dsn", self._dsn])
        if code:
            return f"enqueue: {text[-300:]}"
        job = text.strip().split()[-1]
        self._world.made(job, "quick")
        self._jobs = [job, *(self._world.enqueue(kind, queue=self._queue) for kind in ("quick", "chatty", "flaky"))]
        jobs = self._jobs
        self._world.until(
            lambda: all(row["attempt"] for row in self._world.jobs(jobs).values()), "claimed", within=SOON
        )
        return PASSED

    def _report(self) -> str:
        innocents = [job for job in self._jobs if self._world.jobs([job])[job]["kind"] != "flaky"]
        return self._world.ended(self._jobs, within=SOON) or self._world.charged([self._held, *innocents])

    def _renew(self) -> str:
        query = "select lease_expires_at from jobs where id = %s::uuid and state = 'running'"
        held = self._held
        self._world.until(lambda: self._world.value(query, held) is not None, "it holds a job", within=SOON)
        first = self._world.value(query, held)
        self._world.until(
            lambda: (self._world.value(query, held) or first) > first, "the lease is renewed", within=SOON
        )
        return PASSED

    def _schedule(self) -> str:
        query = "select fired from schedules where key = 'tick'"
        first = self._world.value(query) or 0
        self._world.until(lambda: (self._world.value(query) or 0) > first, "the schedule fires", within=SOON)
        return PASSED

    def _limits(self) -> str:
        for arguments in (
            ["limits", "set", "queue", self._queue, "--max", "10"],
            ["queues", "pause", "another", "--anyway"],
        ):
            code, text = command([*arguments, "--dsn", self._dsn])
            if code:
                return f"{' '.join(arguments[:2])}: {text[-300:]}"
        why = self._world.ended([self._world.enqueue(queue=self._queue)], within=SOON)
        for arguments in (["limits", "clear", "queue", self._queue], ["queues", "resume", "another"]):
            code, text = command([*arguments, "--dsn", self._dsn])
            if code:
                return f"{' '.join(arguments[:2])}: {text[-300:]}"
        return why

    def _lists(self) -> str:
        for arguments in (*LISTS, ["jobs", "show", self._held]):
            code, text = command([*arguments, "--dsn", self._dsn])
            if code:
                return f"{' '.join(arguments)}: {text[-300:]}"
        return PASSED

    def _migrate(self) -> str:
        self._world.rows(
            "update function_files set checksum = 'changed' where name in ('claim.sql', 'guard.sql', 'names.sql')"
        )
        try:
            migrate(self._dsn)
        finally:
            migrate(self._world.server.dsn)
        return PASSED
