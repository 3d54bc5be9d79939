"""A plan as SQL text, the same for `migrate()`, which sends it, and `script()`, which prints it."""

from collections.abc import Iterator
from dataclasses import dataclass

from psycopg import sql

from leasehold.db.bookkeeping import (
    BOOTSTRAP,
    OPEN_VERSIONS,
    record_function_file,
    record_migration,
    record_release,
)
from leasehold.db.planning import Plan
from leasehold.db.schema_files import Source
from leasehold.db.way_back import KEEP

# Settings of the role or the database that would end a long migration half-way are put aside.
# `client_connection_check_interval`: a migrator that was killed gives its locks back at once, not
# when its statement ends; where the server's platform has no such check, nothing is lost.
_PATIENCE = """
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local client_min_messages = warning;
do $$
begin
    if current_setting('transaction_timeout', true) is not null then
        perform set_config('transaction_timeout', '0', true);
    end if;
    begin
        perform set_config('client_connection_check_interval', '1s', true);
    exception when others then
        null;
    end;
end
$$;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Some statements that succeed or fail together, and what to call them."""

    title: str
    text: str


def lock_key(schema: str) -> sql.Composed:
    """Return the expression for the advisory lock that all migrators of one schema share."""
    name = sql.Literal(f"leasehold.migrate.{schema}")
    return sql.SQL("pg_catalog.hashtextextended({}, 0)").format(name)


def settings(schema: str, *, turn_timeout: float) -> Step:
    """Return the settings that hold until the transaction ends; the first step."""
    path = sql.SQL("set local search_path = {}, pg_temp;").format(sql.Identifier(schema))
    parts = (_PATIENCE.strip(), path.as_string(None), _lock_timeout(turn_timeout))
    return Step(title="settings", text="\n".join(parts))


def turn(schema: str) -> Step:
    """Return the wait for other migrations of the schema; the second step."""
    # In a block: psql would print the result of a select.
    wait = sql.SQL("do $$ begin perform pg_advisory_xact_lock({}); end $$;").format(lock_key(schema))
    return Step(title="one migration at a time", text=wait.as_string(None))


def impatience(lock_timeout: float) -> Step:
    """Return the limit for table locks; the third step."""
    # Whoever waits for a table lock stops everybody who comes later from using the table: not long.
    return Step(title="from here on no long wait for a lock", text=_lock_timeout(lock_timeout))


def _lock_timeout(seconds: float) -> str:
    value = sql.Literal(f"{round(seconds * 1000)}ms")
    return sql.SQL("set local lock_timeout = {};").format(value).as_string(None)


def steps(plan: Plan, source: Source, *, release: str) -> Iterator[Step]:
    """Yield what brings the schema to where the plan leads, to be run in one transaction."""
    if plan.create_schema:
        statement = sql.SQL("create schema {};").format(sql.Identifier(plan.schema))
        yield Step(title=f"schema {plan.schema}", text=statement.as_string(None))
    if plan.bootstrap:
        yield Step(title="bookkeeping", text=BOOTSTRAP.strip())
    for migration in plan.migrations:
        yield Step(title=f"migration {migration.name}", text=migration.text)
        yield Step(title="bookkeeping", text=record_migration(migration, release=release))
    if plan.keep:
        yield Step(title="functions as they are, kept for the way back", text=KEEP)
    for file in plan.functions:
        yield Step(title=f"function file {file.name}", text=file.text)
        yield Step(title="bookkeeping", text=record_function_file(file, release=release))
    if plan.functions or plan.forgotten:
        names = tuple(file.name for file in source.functions)
        yield Step(title="bookkeeping", text=record_release(names, release=release))
    if not plan.empty:
        yield Step(title="bookkeeping", text=OPEN_VERSIONS)
