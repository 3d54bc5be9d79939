"""Whether a program and the schema in a database can work together.

During a rolling deployment, programs of the release before work with the schema of the next, as long as it supports
them: a program has the highest migration of its release, and a schema has `Versions`.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from psycopg import Connection, sql

from leasehold._aio import run_blocking
from leasehold.db.call import Call
from leasehold.errors import LeaseholdError, NotPermitted, SchemaMismatch

T = TypeVar("T")

_PRESENCE = """
select n.oid is not null,
       coalesce(pg_catalog.has_schema_privilege(n.oid, 'USAGE'), false),
       exists (select from pg_catalog.pg_proc p
                where p.pronamespace = n.oid and p.proname = 'schema_supports_from'),
       exists (select from pg_catalog.pg_class c where c.relnamespace = n.oid)
         or exists (select from pg_catalog.pg_proc p where p.pronamespace = n.oid),
       pg_catalog.pg_is_in_recovery()
  from (select) as one
  left join pg_catalog.pg_namespace n on n.nspname = %s
"""


@dataclass(frozen=True, slots=True)
class Presence:
    """What any role can see of a schema without being allowed to use it."""

    exists: bool
    usable: bool
    installed: bool  # Leasehold was installed here
    occupied: bool  # it holds something, Leasehold's or not
    standby: bool = False  # the server follows another one: it can be read from and takes no writes


@dataclass(frozen=True, slots=True)
class Versions:
    """What an installed schema says about itself."""

    version: int = 0  # the highest migration applied
    supports: int = 0  # the lowest migration number whose programs still work with it


def presence(schema: str) -> Call[Presence]:
    """Ask whether the schema is there; never fails, whatever the database holds."""
    return Call(_PRESENCE, (schema,), lambda rows: Presence(*rows[0]))


def versions(schema: str) -> Call[Versions]:
    """Ask an installed schema for its versions; any role with USAGE on it may."""
    statement = sql.SQL("select {}(), {}()").format(
        sql.Identifier(schema, "schema_version"), sql.Identifier(schema, "schema_supports_from")
    )
    return Call(statement.as_string(None), (), lambda rows: Versions(*rows[0]))


async def schema_problem(
    ask: Callable[[Call[Any]], Awaitable[Any]], *, latest: int, schema: str
) -> tuple[Presence, LeaseholdError | None]:
    """Return what is there, and the error for a program that knows migrations up to `latest`, or None."""
    found: Presence = await ask(presence(schema))
    problem = _presence_problem(found, schema)
    return found, problem or version_problem(await ask(versions(schema)), latest=latest, schema=schema)


def _presence_problem(found: Presence, schema: str) -> LeaseholdError | None:
    if not found.installed:
        what = "is not installed" if found.exists else "does not exist"
        return SchemaMismatch(
            f"schema {schema!r} {what} in this database",
            hint="run `leasehold migrate`, or check the DSN and LEASEHOLD_SCHEMA",
        )
    if not found.usable:
        return NotPermitted(
            f"the database role may not use schema {schema!r}",
            hint="grant it one of Leasehold's roles, or USAGE on the schema",
        )
    return None


def version_problem(found: Versions, *, latest: int, schema: str) -> SchemaMismatch | None:
    """Return the error for a program that knows migrations up to `latest`, or None when all is well."""
    if latest > found.version:
        return SchemaMismatch(
            f"schema {schema!r} is older than this release: migration {found.version} of {latest}",
            hint="run `leasehold migrate`",
        )
    if latest < found.supports:
        return SchemaMismatch(
            f"schema {schema!r} is newer than this release knows: it is at migration {found.version} "
            f"and serves programs from migration {found.supports} on, this release has {latest}",
            hint="upgrade leasehold",
        )
    return None


# -- the tables in which a schema records the migrations and function files that were applied to it

# Frozen like a released migration: later changes of these tables come as numbered migrations.
# Every release calls `schema_version` and `schema_supports_from`: these names never change.
BOOTSTRAP = """
create table migrations (
    version integer primary key,
    name text not null,
    checksum text not null,
    supports_from integer not null,
    release text not null,
    applied_at timestamptz not null default now()
);
create table function_files (
    name text primary key,
    checksum text not null,
    release text not null,
    applied_at timestamptz not null default now()
);
create table function_sets (
    number integer generated always as identity primary key,
    release text not null,
    kept_at timestamptz not null default now(),
    files jsonb not null,
    functions jsonb not null,
    triggers jsonb not null
);
revoke all on migrations, function_files, function_sets from public;

create function schema_version() returns integer
language sql stable security definer set search_path from current
as $$ select coalesce(max(version), 0) from migrations $$;

create function schema_supports_from() returns integer
language sql stable security definer set search_path from current
as $$ select coalesce(max(supports_from), 0) from migrations $$;

comment on table migrations is 'Numbered migrations applied to this schema.';
comment on table function_files is 'Function files last applied to this schema.';
comment on table function_sets is 'Functions of earlier releases, the latest last: leasehold migrate --back.';
comment on function schema_version() is 'The highest migration applied.';
comment on function schema_supports_from() is 'The lowest migration number whose programs still work.';
"""

# Every program asks for the versions first. The last step: the file of grants revokes all functions from PUBLIC.
OPEN_VERSIONS = "grant execute on function schema_version(), schema_supports_from() to public;"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What is in the database."""

    presence: Presence
    versions: Versions = field(default_factory=Versions)
    migrations: Mapping[int, str] = field(default_factory=dict)
    """Checksums by version."""
    functions: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """The checksum of each function file, and the release that applied it."""
    access: tuple[str, ...] = ()
    """What is wrong with roles and grants, in words."""


async def ask_blocking(connection: Connection, call: Call[T]) -> T:
    """Run a call in the transaction of a connection."""
    return call.read(connection.execute(call.sql.encode(), call.args or None).fetchall())


def read_applied(connection: Connection, schema: str) -> Applied:
    """Read the bookkeeping; nothing is applied to an empty database."""
    found = run_blocking(ask_blocking(connection, presence(schema)))
    if not found.installed:
        return Applied(presence=found)
    query = sql.SQL("select version, checksum, supports_from from {} order by version")
    migrations = connection.execute(query.format(sql.Identifier(schema, "migrations"))).fetchall()
    query = sql.SQL("select name, checksum, release from {}")
    functions = connection.execute(query.format(sql.Identifier(schema, "function_files"))).fetchall()
    return Applied(
        presence=found,
        versions=Versions(*(max((row[place] for row in migrations), default=0) for place in (0, 2))),
        migrations={version: checksum for version, checksum, _ in migrations},
        functions={name: (checksum, release) for name, checksum, release in functions},
        access=_read_access(connection, schema),
    )


def _read_access(connection: Connection, schema: str) -> tuple[str, ...]:
    """Ask the schema's own function; releases without it had the roles and grants of their files alone."""
    known = connection.execute(
        "select 1 from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace"
        " where n.nspname = %s and p.proname = 'access_problems'",
        (schema,),
    ).fetchone()
    if known is None:
        return ()
    with connection.transaction():
        connection.execute(sql.SQL("set local search_path = {}, pg_temp").format(sql.Identifier(schema)))
        return tuple(row[0] for row in connection.execute("select access_problems()").fetchall())
