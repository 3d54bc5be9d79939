"""A plain connection with errors that say where it wanted to go, and never the password."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
from psycopg import IsolationLevel, pq
from psycopg.conninfo import conninfo_to_dict

from leasehold.db.way import way_to
from leasehold.errors import ConfigError, DatabaseUnavailable

# Long enough for a server on another continent, short enough for somebody who waits for the answer.
_CONNECT_TIMEOUT = 5


@contextmanager
def connected(dsn: str, *, application_name: str) -> Iterator[psycopg.Connection]:
    """Open a connection to `dsn` and close it afterwards, rolling back what is not committed."""
    parts = dsn_parts(dsn)
    way = way_to(dsn)
    try:
        connection = psycopg.connect(
            dsn,
            application_name=application_name,
            client_encoding="utf8",
            options=way.options(parts),
            connect_timeout=int(parts.get("connect_timeout") or _CONNECT_TIMEOUT),
            prepare_threshold=None,  # a pooler in transaction mode loses prepared statements
        )
    except psycopg.OperationalError as error:
        if way.refused(error):
            with connected(dsn, application_name=application_name) as connection:
                yield connection
            return
        raise DatabaseUnavailable(
            f"cannot connect to PostgreSQL at {place_of(parts)}: {reason_of(error)}",
            hint="check that the server runs, and host, port, database, user and password of the DSN",
        ) from error
    # Whoever waited for a lock must see what the one before committed: not so in stricter levels.
    connection.isolation_level = IsolationLevel.READ_COMMITTED
    connection.read_only = False
    with closing(connection):
        yield connection


def dsn_parts(dsn: str) -> dict[str, str]:
    """What the DSN says; ConfigError without a word of it if that cannot be told."""
    try:
        parts = {key: str(value) for key, value in conninfo_to_dict(dsn).items() if value is not None}
        int(parts.get("connect_timeout") or 0)
    except (psycopg.Error, ValueError):
        # The parser's own message quotes the DSN, password included: hence neither it nor `from error`.
        raise _unreadable(f"the DSN cannot be understood{_strange_names(dsn)}") from None
    if "@" in parts.get("host", ""):
        # `user:p@ss@host`: what looks like a host holds the end of the password.
        raise _unreadable("the DSN has more than one '@' before its host; write one in a password as %40")
    return parts


def _strange_names(dsn: str) -> str:
    """The parameters of a URI that are none of libpq's, by name: their values may be secret."""
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    names = [part.partition("=")[0] for part in dsn.partition("?")[2].split("&") if "=" in part]
    strange = [name for name in names if name not in known and name.isidentifier()]
    return f": PostgreSQL knows no parameter {', '.join(map(repr, strange))}" if strange else ""


def _unreadable(message: str) -> ConfigError:
    return ConfigError(message, hint="it looks like postgresql://user:password@host:5432/database")


def place_of(parts: dict[str, str]) -> str:
    """Where the DSN leads, in words."""
    host = parts.get("host") or parts.get("hostaddr") or os.environ.get("PGHOST") or "the local socket"
    port = parts.get("port") or os.environ.get("PGPORT") or "5432"
    database = parts.get("dbname") or os.environ.get("PGDATABASE") or parts.get("user") or "(default)"
    return f"{host}, port {port}, database {database}"


def reason_of(error: psycopg.Error) -> str:
    """The end of the first line: its beginning repeats the place, the other lines every address."""
    first = str(error).strip().partition("\n")[0]
    return first.rpartition(" failed: ")[2] or "no answer"
