"""How our own connections are opened."""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from types import MappingProxyType
from typing import Any, Final, cast

import psycopg
from psycopg import IsolationLevel, pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from leasehold._aio import run_blocking
from leasehold._clock import monotonic
from leasehold._logger import logger_of
from leasehold.db.connections.io import CallDeadline, Connection, ask, close, connect
from leasehold.errors import ConfigError, DatabaseUnavailable

logger = logger_of(__name__)

_DEFAULTS: dict[str, Any] = {
    # Long enough for a server on another continent, short enough for a caller who waits for the answer.
    "connect_timeout": 5,
    # The network stack must notice a peer that vanished without closing, or a call would hang for hours.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


class Dialer:
    """Opens connections to one database. The DSN's settings override ours, except those that we depend on.

    No exception of it, and not its repr, shows the password.
    """

    def __init__(
        self, dsn: str, *, name: str, prepare: bool = True, prepare_after: int = 0, probe: bool = True,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """`probe`: check the route of the first connection. `options` override the DSN."""
        given, settings = dsn_parts(dsn), {**_DEFAULTS, "application_name": name}
        found = resolved(dsn)
        self._theirs = found["options"]
        host = found["host"] or found["hostaddr"] or "the local socket"
        self._place = f"{host}, port {found['port']}, database {found['dbname']}"
        self._timeout = int(given.get("connect_timeout") or _DEFAULTS["connect_timeout"])
        self._prepare_after = prepare_after if prepare else None
        self._probe = probe
        self._options: dict[str, Any] = {
            **found,
            **{key: value for key, value in settings.items() if key not in given},
            "client_encoding": "utf8",
            "autocommit": True,
            **options,
        }
        self.route = _routes.setdefault(dsn, Route())

    def __repr__(self) -> str:
        return f"<Dialer {self._place}>"

    async def connect(self, deadline: float | None = None, *, blocking: bool) -> Connection:
        """Open a connection, or raise DatabaseUnavailable not much later than `deadline` by the monotonic clock."""
        try:
            connection = await connect(self._options_until(deadline), blocking=blocking)
        except (psycopg.Error, OSError) as error:  # OSError: of this process, as without a descriptor or memory
            if isinstance(error, psycopg.Error) and (self.route.refused(error) or _unset_service()):
                return await self.connect(deadline, blocking=blocking)
            raise self._meaning(error) from error
        # Once, while all is well; on each connection where settings cannot be pinned: they may have been changed.
        if self._probe and (self.route.pooled is None or self.route.plain):
            try:
                with CallDeadline(connection, monotonic() + 5):
                    [row] = await ask(connection, _PROBE, prepare=False)
                self.route.answered(connection, *row)
            except BaseException as error:
                await close(connection)
                if isinstance(error, psycopg.Error):
                    raise self._meaning(error) from error
                raise
            if self.route.pooled:
                connection.prepare_threshold = None
        return connection

    def _options_until(self, deadline: float | None) -> dict[str, Any]:
        threshold = None if self.route.pooled else self._prepare_after
        chosen = self._options | {"prepare_threshold": threshold, "options": self.route.options(self._theirs)}
        if deadline is None:
            return chosen
        # psycopg takes whole seconds, and anything below 2 as 2.
        left = max(1, int(deadline - monotonic()))
        return chosen | {"connect_timeout": min(left, self._timeout or left)}

    def _meaning(self, error: psycopg.Error | OSError) -> DatabaseUnavailable:
        shortage = _shortage()
        meaning = DatabaseUnavailable(
            f"cannot connect to PostgreSQL at {self._place}: {shortage or reason_of(error)}",
            hint="raise `ulimit -n`, or close the files and sockets that tasks leave open"
            if shortage
            else "check that the server runs, and host, port, database, user and password of the DSN",
        )
        meaning.sent, meaning.local = False, shortage is not None
        return meaning


def _shortage() -> str | None:
    """Return what the system says if this process can open nothing: the driver does not say so."""
    try:
        for descriptor in os.pipe():
            os.close(descriptor)
    except OSError as error:
        return error.strerror
    return None


@contextmanager
def connected(dsn: str, *, application_name: str) -> Iterator[psycopg.Connection]:
    """Open a connection for transactions and close it afterwards, rolling back what is not committed."""
    # Not prepared: a pooler in transaction mode loses prepared statements.
    options = {"application_name": application_name, "autocommit": False}
    dialer = Dialer(dsn, name=application_name, prepare=False, probe=False, options=options)
    with closing(cast(psycopg.Connection, run_blocking(dialer.connect(blocking=True)))) as connection:
        # A transaction that waited for a lock must see what its predecessor committed: not so in stricter levels.
        connection.isolation_level = IsolationLevel.READ_COMMITTED
        connection.read_only = False
        yield connection


# -- the route

PINNED: Final = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "standard_conforming_strings": "on",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "client_min_messages": "notice",
    "bytea_output": "hex",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "gin_fuzzy_search_limit": "0",
}
"""Settings that our own connections need, whatever the role or the database sets. Not default_transaction_read_only: an
operator sets it to stop writes, and we wait."""

_CHECK: Final = "client_connection_check_interval"
"""In milliseconds. With it, a call that was given up while it waits for a lock ends in the server too."""

_PROBE: Final = "select pg_backend_pid(), current_setting('default_transaction_isolation')"
"""The query whose answer shows a pooler and unfit settings."""


class Route:
    """What is known in this process about the route to one database: whether it goes through a pooler.

    A pooler in transaction mode runs each transaction in another session. Statements that were prepared in one are
    missing in the next or, worse, are another client's under the same name; settings sent at the start are refused or
    lost.
    """

    def __init__(self) -> None:
        self.plain = False
        """Whether settings are refused at the start of a session: then none are sent."""
        self.unchecked = False
        """Whether the server's system cannot check that a client is connected, as Windows: then it is not asked to."""
        self.pooled: bool | None = None
        """Whether a pooler is on the route; None: not known yet."""
        self._guard = threading.Lock()

    def options(self, theirs: str) -> str:
        """Return the setting `options` for a new connection: those of the DSN, then those of ours that must win."""
        if self.plain:
            return theirs
        ours = " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in PINNED.items())
        check = "" if self.unchecked else f"-c {_CHECK}=2000"
        return f"{check} {theirs} {ours}".strip()

    def refused(self, error: psycopg.Error) -> bool:
        """Return whether the settings were refused, as by PgBouncer: the next attempt goes without them."""
        if not self.unchecked and _CHECK in str(error):
            self.unchecked = True
            return True
        if self.plain or "unsupported startup parameter" not in str(error):
            return False
        self.plain = True
        self._found_pooler("it refuses settings at the start of a session")
        return True

    def answered(self, connection: Connection, pid: int, isolation: str) -> None:
        """Learn from the answer to `_PROBE`."""
        if pid != connection.info.backend_pid:
            self._found_pooler("the session is not the one that was begun")
        elif self.pooled is None:
            self.pooled = False
        for name in ("DateStyle", "IntervalStyle", "standard_conforming_strings"):  # which the server reports
            value = connection.info.parameter_status(name) or ""
            if value and not value.startswith(PINNED[name]):
                raise _unfit(name, value)
        if isolation != PINNED["default_transaction_isolation"]:
            raise _unfit("default_transaction_isolation", isolation)

    def learn(self, error: BaseException) -> None:
        """Learn from the error of a call, which may show that prepared statements do not last."""
        # No such prepared statement; or there is one already.
        if isinstance(error, psycopg.Error) and error.sqlstate in {"26000", "42P05"}:
            self._found_pooler("prepared statements do not last")

    def _found_pooler(self, how: str) -> None:
        with self._guard:
            known, self.pooled = self.pooled, True
        if not known:
            logger.warning(
                "there is a pooler before the database (%s): prepared statements are switched off;"
                " LEASEHOLD_PREPARE=off says so from the start", how,
            )  # fmt: skip


def _unfit(name: str, value: str) -> ConfigError:
    return ConfigError(
        f"the role or the database sets {name} to {value!r}, and the pooler before it lets no client change that",
        hint=f"alter role ... set {name} = '{PINNED[name]}'",
    )


_routes: dict[str, Route] = {}


# -- what a DSN says, in words that never show the password


def dsn_parts(dsn: str) -> dict[str, str]:
    """Return the parameters of the DSN; ConfigError, which quotes nothing of it, if it cannot be parsed."""
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
    """Name the parameters of a URI that libpq does not have; without their values, which may be secret."""
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    names = [part.partition("=")[0] for part in dsn.partition("?")[2].split("&") if "=" in part]
    strange = [name for name in names if name not in known and name.isidentifier()]
    return f": PostgreSQL knows no parameter {', '.join(map(repr, strange))}" if strange else ""


def _unreadable(message: str) -> ConfigError:
    return ConfigError(message, hint="it looks like postgresql://user:password@host:5432/database")


_EMPTY: Final = frozenset({
    "password", "passfile", "dbname", "host", "hostaddr", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslcrldir",
    "requirepeer", "ssl_max_protocol_version",
})  # fmt: skip
"""Parameters that are usually not set, and for which libpq takes an empty text as that. Not `require_auth`, for
example: an empty one refuses every password."""


def resolved(dsn: str) -> dict[str, str]:
    """Return the parameters as they are now, from the DSN, its service, the environment and what libpq presumes.

    For one that is given, though it be empty, libpq does not look into the environment, which a task may change.
    """
    # libpq lists the parameters of a connection that it refuses to open: so two are tried, each with one invalid value.
    found = _parameters(make_conninfo(dsn, sslmode="?"))
    return found | {"sslmode": _parameters(make_conninfo(dsn, target_session_attrs="?"))["sslmode"]}


def _parameters(conninfo: str) -> dict[str, str]:
    refused = pq.PGconn.connect_start(conninfo.encode())
    found = {option.keyword.decode(): option for option in refused.info}
    if found["sslmode"].val is None:
        raise ConfigError(
            f"the service of the database cannot be read: {refused.get_error_message().strip()}",
            hint="check `service` in the DSN, PGSERVICE and PGSERVICEFILE",
        )
    del found["service"]  # its parameters are among the others
    return {
        name: "" if option.val is None else option.val.decode()
        for name, option in found.items()
        if name in _EMPTY or option.val is not None
    }


def _unset_service() -> bool:
    """Unset PGSERVICE if it names nothing: libpq then refuses every connection. Return whether it was so."""
    try:
        resolved("")
    except ConfigError as error:
        if service := os.environ.pop("PGSERVICE", None):
            logger.warning("PGSERVICE=%s was set after the start, and is unset: %s", service, error)
            return True
    return False


def reason_of(error: Exception) -> str:
    """Return the end of the first line of an error: its beginning repeats the place, the other lines every address."""
    first = str(error).strip().partition("\n")[0]
    return first.rpartition(" failed: ")[2] or "no answer"
