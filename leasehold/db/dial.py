"""How our own connections are made, whoever uses them."""

import time
from typing import Any

import psycopg

from leasehold.db.connect import dsn_parts, place_of, reason_of
from leasehold.db.doubt import watch
from leasehold.errors import DatabaseUnavailable

_DEFAULTS: dict[str, Any] = {
    "client_encoding": "utf8",
    "connect_timeout": 5,
    # A peer that vanished without a word must be noticed by the network stack, or a call would hang for hours.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


class Dialer:
    """Opens connections to one database. What the DSN says of a setting wins over ours.

    No exception of it, and not its repr, shows the password.
    """

    def __init__(self, dsn: str, *, name: str, prepare: bool = True, prepare_after: int = 0) -> None:
        parts = dsn_parts(dsn)
        settings = {**_DEFAULTS, "application_name": name}
        self._dsn = dsn
        self._place = place_of(parts)
        self._timeout = int(parts.get("connect_timeout") or _DEFAULTS["connect_timeout"])
        self._options: dict[str, Any] = {
            **{key: value for key, value in settings.items() if key not in parts},
            "autocommit": True,
            "prepare_threshold": prepare_after if prepare else None,
        }

    def __repr__(self) -> str:
        return f"<Dialer {self._place}>"

    def connect(self, deadline: float | None = None) -> psycopg.Connection:
        """A new connection, or DatabaseUnavailable; not much later than `deadline` by the monotonic clock."""
        try:
            connection = psycopg.connect(self._dsn, **self._options_until(deadline))
        except psycopg.Error as error:
            raise self._meaning(error) from error
        watch(connection)
        return connection

    async def aconnect(self, deadline: float | None = None) -> psycopg.AsyncConnection:
        """A new connection, or DatabaseUnavailable; not much later than `deadline` by the monotonic clock."""
        try:
            connection = await psycopg.AsyncConnection.connect(self._dsn, **self._options_until(deadline))
        except psycopg.Error as error:
            raise self._meaning(error) from error
        watch(connection)
        return connection

    def _options_until(self, deadline: float | None) -> dict[str, Any]:
        if deadline is None:
            return self._options
        # psycopg takes whole seconds, and anything below 2 as 2.
        left = max(1, int(deadline - time.monotonic()))
        return self._options | {"connect_timeout": min(left, self._timeout or left)}

    def _meaning(self, error: psycopg.Error) -> DatabaseUnavailable:
        return DatabaseUnavailable(
            f"cannot connect to PostgreSQL at {self._place}: {reason_of(error)}",
            hint="check that the server runs, and host, port, database, user and password of the DSN",
        )
