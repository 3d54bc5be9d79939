"""A temporary schema: created, used, and dropped whatever happens."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from leasehold.config import checked_schema
from leasehold.db.connections.dial import connected, reason_of
from leasehold.db.migrations.migrate import migrate
from leasehold.errors import ConfigError, DatabaseUnavailable, NotPermitted

_MARK = "made by leasehold bench, dropped when it ends"
"""The comment on such a schema: one that was left behind is known by it, and no other is ever touched."""


@contextmanager
def scratch_schema(dsn: str, schema: str, *, say: Callable[[str], None]) -> Iterator[None]:
    """Make our schema under that name, empty; refuse one that is there already and not of this making."""
    checked_schema(schema)
    with connected(dsn, application_name="leasehold bench") as connection:
        connection.autocommit = True
        try:
            _make(connection, schema)
        except psycopg.errors.InsufficientPrivilege as error:
            raise NotPermitted(
                f"{connection.info.user} may not make schema {schema!r}: {error.diag.message_primary}",
                hint=f"grant create on database {connection.info.dbname} to {connection.info.user}",
            ) from error
        except psycopg.OperationalError as error:
            raise DatabaseUnavailable(f"no answer from PostgreSQL: {reason_of(error)}") from error
        try:
            migrate(dsn, schema=schema)
            yield
        finally:
            _drop(connection, schema, say)


def _make(connection: psycopg.Connection, schema: str) -> None:
    # Of the session, not of a transaction: it is held while the benchmark runs, and an open transaction would hold up
    # vacuum. Nothing but a second benchmark asks for it.
    taken = connection.execute("select pg_try_advisory_lock(hashtextextended('leasehold bench ' || %s, 0))", [schema])
    if taken.fetchone() != (True,):
        message = f"another benchmark is running in schema {schema!r}"
        raise ConfigError(message, hint="wait for it, or choose another with --schema")
    query = "select obj_description(oid, 'pg_namespace') from pg_namespace where nspname = %s"
    found = connection.execute(query, [schema]).fetchone()
    name = sql.Identifier(schema)
    with connection.transaction():
        if found is not None:
            if found[0] != _MARK:
                raise ConfigError(
                    f"schema {schema!r} is there already, and no benchmark made it",
                    hint="choose another with --schema; it would be dropped at the end",
                )
            connection.execute(sql.SQL("drop schema {} cascade").format(name))
        connection.execute(sql.SQL("create schema {}").format(name))
        connection.execute(sql.SQL("comment on schema {} is {}").format(name, sql.Literal(_MARK)))


def _drop(connection: psycopg.Connection, schema: str, say: Callable[[str], None]) -> None:
    """Drop it; never raise, so that the user gets the error that happened before."""
    try:
        connection.execute("set lock_timeout = '30s'")
        connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(schema)))
    except psycopg.Error as error:
        say(f"schema {schema!r} is left behind ({reason_of(error)}): the next benchmark there removes it")
