"""How our own connections are made, whoever uses them."""

import time
from typing import Any

import psycopg

from leasehold.db.connect import dsn_parts, place_of, reason_of
from leasehold.db.cut import CutOff, ThreadCutOff
from leasehold.db.doubt import watch
from leasehold.db.way import ASK, way_to
from leasehold.errors import DatabaseUnavailable

_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 5,
    # A peer that vanished without a word must be noticed by the network stack, or a call would hang for hours.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


_ASKING = 5.0
"""Seconds for the answer to the one question that a first connection asks."""


class Dialer:
    """Opens connections to one database. What the DSN says of a setting wins over ours, unless we need it.

    No exception of it, and not its repr, shows the password.
    """

    def __init__(self, dsn: str, *, name: str, prepare: bool = True, prepare_after: int = 0) -> None:
        self._parts = dsn_parts(dsn)
        settings = {**_DEFAULTS, "application_name": name}
        self._dsn = dsn
        self._place = place_of(self._parts)
        self._timeout = int(self._parts.get("connect_timeout") or _DEFAULTS["connect_timeout"])
        self._prepare_after = prepare_after if prepare else None
        self._options: dict[str, Any] = {
            **{key: value for key, value in settings.items() if key not in self._parts},
            "client_encoding": "utf8",
            "autocommit": True,
        }
        self.way = way_to(dsn)

    def __repr__(self) -> str:
        return f"<Dialer {self._place}>"

    @property
    def prepare_after(self) -> int | None:
        """Calls after which a statement is prepared; None: never."""
        return None if self.way.pooled else self._prepare_after

    def connect(self, deadline: float | None = None) -> psycopg.Connection:
        """A new connection, or DatabaseUnavailable; not much later than `deadline` by the monotonic clock."""
        try:
            connection = psycopg.connect(self._dsn, **self._options_until(deadline))
        except psycopg.Error as error:
            if self.way.refused(error):
                return self.connect(deadline)
            raise self._meaning(error) from error
        watch(connection)
        if self._is_to_ask():
            try:
                with ThreadCutOff(connection, time.monotonic() + _ASKING):
                    self.way.answered(connection, connection.execute(ASK, prepare=False).fetchone())
            except BaseException as error:
                connection.close()
                raise self._translated(error) from error
            connection.prepare_threshold = self.prepare_after
        return connection

    async def aconnect(self, deadline: float | None = None) -> psycopg.AsyncConnection:
        """A new connection, or DatabaseUnavailable; not much later than `deadline` by the monotonic clock."""
        try:
            connection = await psycopg.AsyncConnection.connect(self._dsn, **self._options_until(deadline))
        except psycopg.Error as error:
            if self.way.refused(error):
                return await self.aconnect(deadline)
            raise self._meaning(error) from error
        watch(connection)
        if self._is_to_ask():
            try:
                with CutOff(connection, time.monotonic() + _ASKING):
                    cursor = await connection.execute(ASK, prepare=False)
                    self.way.answered(connection, await cursor.fetchone())
            except BaseException as error:
                await connection.close()
                raise self._translated(error) from error
            connection.prepare_threshold = self.prepare_after
        return connection

    def _is_to_ask(self) -> bool:
        """Once, as long as all is well; each time where settings cannot be pinned: they may have been changed."""
        return self.way.pooled is None or self.way.plain

    def _options_until(self, deadline: float | None) -> dict[str, Any]:
        chosen = self._options | {"prepare_threshold": self.prepare_after}
        if (options := self.way.options(self._parts)) is not None:
            chosen["options"] = options
        if deadline is None:
            return chosen
        # psycopg takes whole seconds, and anything below 2 as 2.
        left = max(1, int(deadline - time.monotonic()))
        return chosen | {"connect_timeout": min(left, self._timeout or left)}

    def _translated(self, error: BaseException) -> BaseException:
        return self._meaning(error) if isinstance(error, psycopg.Error) else error

    def _meaning(self, error: psycopg.Error) -> DatabaseUnavailable:
        meaning = DatabaseUnavailable(
            f"cannot connect to PostgreSQL at {self._place}: {reason_of(error)}",
            hint="check that the server runs, and host, port, database, user and password of the DSN",
        )
        meaning.sent = False
        return meaning
