"""Whether a program and the schema in a database can work together.

The schema knows its `version` (the highest migration applied) and `supports` (the lowest migration
number whose programs it still serves). A program knows the highest migration of its release. While
a deployment rolls, programs of the release before meet the schema of the next: they go on as long
as the schema supports them.

What is asked is plain data (`Call`), so that blocking and asynchronous connections share it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from leasehold.db.call import Call, Row
from leasehold.errors import LeaseholdError, NotPermitted, SchemaMismatch

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """What any role can see of a schema without being allowed to use it."""

    exists: bool
    usable: bool
    installed: bool
    """Leasehold was installed here."""
    occupied: bool
    """It holds something, Leasehold's or not."""
    standby: bool = False
    """The server follows another one: it can be read from and takes no writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """What an installed schema says about itself."""

    version: int
    supports: int


def presence(schema: str) -> Call[Presence]:
    """Ask whether the schema is there; never fails, whatever the database holds."""
    return Call(_PRESENCE, (schema,), _read_presence)


def versions(schema: str) -> Call[Versions]:
    """Ask an installed schema for its versions; any role with USAGE on it may."""
    statement = sql.SQL("select {}(), {}()").format(
        sql.Identifier(schema, "schema_version"), sql.Identifier(schema, "schema_supports_from")
    )
    return Call(statement.as_string(None), (), _read_versions)


def presence_problem(found: Presence, *, schema: str) -> LeaseholdError | None:
    """Return the error for a program that needs the schema, or None when its versions can be asked."""
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


def _read_presence(rows: Sequence[Row]) -> Presence:
    exists, usable, installed, occupied, standby = rows[0]
    return Presence(exists=exists, usable=usable, installed=installed, occupied=occupied, standby=standby)


def _read_versions(rows: Sequence[Row]) -> Versions:
    version, supports = rows[0]
    return Versions(version=version, supports=supports)
