"""What the schema remembers about itself: the migrations and function files applied to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from psycopg import Connection, sql

from leasehold.db.compat import Presence, Versions, presence
from leasehold.db.schema_files import FunctionFile, Migration

# Frozen like a released migration: later changes of these tables come as numbered migrations.
# The names `schema_version` and `schema_supports_from` are what every release asks for, for ever.
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
revoke all on migrations, function_files from public;

create function schema_version() returns integer
language sql stable security definer set search_path from current
as $$ select coalesce(max(version), 0) from migrations $$;

create function schema_supports_from() returns integer
language sql stable security definer set search_path from current
as $$ select coalesce(max(supports_from), 0) from migrations $$;

comment on table migrations is 'Numbered migrations applied to this schema.';
comment on table function_files is 'Function files last applied to this schema.';
comment on function schema_version() is 'The highest migration applied.';
comment on function schema_supports_from() is 'The lowest migration number whose programs still work.';
"""

# Every program asks for the versions before anything else. The last step of every migration: a file
# of grants that takes all functions from everybody must not stop that.
OPEN_VERSIONS = "grant execute on function schema_version(), schema_supports_from() to public;"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedFile:
    """A function file as it was last applied, and the release that vouches for it."""

    checksum: str
    release: str


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What is in the database."""

    presence: Presence
    versions: Versions = field(default_factory=lambda: Versions(version=0, supports=0))
    migrations: Mapping[int, str] = field(default_factory=dict)
    """Checksums by version."""
    functions: Mapping[str, AppliedFile] = field(default_factory=dict)
    access: tuple[str, ...] = ()
    """What is wrong with roles and grants, in words."""


def read_state(connection: Connection, schema: str) -> State:
    """Read the bookkeeping; an empty database gives an empty state."""
    asked = presence(schema)
    found = asked.read(connection.execute(asked.sql.encode(), asked.args).fetchall())
    if not found.installed:
        return State(presence=found)
    migrations = connection.execute(
        sql.SQL("select version, checksum, supports_from from {} order by version").format(
            sql.Identifier(schema, "migrations")
        )
    ).fetchall()
    functions = connection.execute(
        sql.SQL("select name, checksum, release from {}").format(sql.Identifier(schema, "function_files"))
    ).fetchall()
    return State(
        presence=found,
        versions=Versions(
            version=max((row[0] for row in migrations), default=0),
            supports=max((row[2] for row in migrations), default=0),
        ),
        migrations={row[0]: row[1] for row in migrations},
        functions={row[0]: AppliedFile(checksum=row[1], release=row[2]) for row in functions},
        access=_read_access(connection, schema),
    )


def _read_access(connection: Connection, schema: str) -> tuple[str, ...]:
    """Ask the schema's own function; releases that have none had the roles and grants of their files alone."""
    known = connection.execute(
        "select exists (select from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace"
        " where n.nspname = %s and p.proname = 'access_problems')",
        (schema,),
    ).fetchone()
    if not known or not known[0]:
        return ()
    with connection.transaction():
        connection.execute(sql.SQL("set local search_path = {}, pg_temp").format(sql.Identifier(schema)))
        rows = connection.execute("select access_problems()").fetchall()
    return tuple(row[0] for row in rows)


def record_migration(migration: Migration, *, release: str) -> str:
    """Return the statement that remembers an applied migration."""
    statement = sql.SQL(
        "insert into migrations (version, name, checksum, supports_from, release) values ({}, {}, {}, {}, {});"
    )
    values = (migration.version, migration.name, migration.checksum, migration.supports, release)
    return statement.format(*map(sql.Literal, values)).as_string(None)


def record_function_file(file: FunctionFile, *, release: str) -> str:
    """Return the statement that remembers an applied function file."""
    statement = sql.SQL(
        "insert into function_files (name, checksum, release) values ({}, {}, {})\n"
        "on conflict (name) do update\n"
        "set checksum = excluded.checksum, release = excluded.release, applied_at = now();"
    )
    return statement.format(*map(sql.Literal, (file.name, file.checksum, release))).as_string(None)


def record_release(names: tuple[str, ...], *, release: str) -> str:
    """Return the statements that make `names` the whole set of function files of `release`.

    A file that is no longer part of the release is forgotten; the functions it made stay, because
    programs of the release before may still call them. A later migration drops them.
    """
    statement = sql.SQL(
        "delete from function_files where name <> all ({}::text[]);\nupdate function_files set release = {};"
    )
    return statement.format(sql.Literal(list(names)), sql.Literal(release)).as_string(None)
