"""What was found out about the way to a database: whether a pooler is on it, and what that one does not pass on.

A pooler in transaction mode gives each transaction another session. Statements that were prepared in one are missing in
the next or, worse, are another client's under the same name; settings given at the start are refused or lost.
"""

import logging
import os
import threading
from collections.abc import Mapping
from typing import Final

import psycopg

from leasehold.errors import ConfigError

logger = logging.getLogger(__name__)

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
"""What our own connections need, whatever a role or a database has been given. Not default_transaction_read_only: that
is set by an operator who wants writes to stop, and we wait."""

_CHECK: Final = "client_connection_check_interval"
"""In milliseconds. A call that was given up while it waits for a lock ends in the server too, and is not done later."""

_CHECK_EVERY: Final = 2000

ASK: Final = "select pg_backend_pid(), current_setting('default_transaction_isolation')"
"""What is asked once."""

_REPORTED = ("DateStyle", "IntervalStyle", "standard_conforming_strings")
"""Those of the pinned settings that the server reports to each client."""

_FOREIGN_STATEMENTS = {"26000", "42P05"}
"""No such prepared statement; there is one already."""


class Way:
    """The way to one database, as far as it is known in this process."""

    def __init__(self) -> None:
        self.plain = False
        """Settings are refused at the start of a session: then none are given."""
        self.unchecked = False
        """The server's system cannot look whether a client is still there, as Windows: then it is not asked to."""
        self.pooled: bool | None = None
        """Whether a pooler is on the way; None: not known yet."""
        self._guard = threading.Lock()

    def options(self, parts: Mapping[str, str]) -> str | None:
        """The setting `options` for a new connection: those of the DSN, and after them those of ours that must win."""
        theirs = parts.get("options") or os.environ.get("PGOPTIONS") or ""
        if self.plain:
            return theirs or None
        ours = " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in PINNED.items())
        check = "" if self.unchecked else f"-c {_CHECK}={_CHECK_EVERY}"
        return f"{check} {theirs} {ours}".strip()

    def refused(self, error: psycopg.Error) -> bool:
        """Whether a connection was refused because of the settings, as by PgBouncer: try again, without."""
        if not self.unchecked and _CHECK in str(error):
            self.unchecked = True
            return True
        if self.plain or "unsupported startup parameter" not in str(error):
            return False
        self.plain = True
        self._found("it refuses settings at the start of a session")
        return True

    def answered(self, connection: "psycopg.Connection | psycopg.AsyncConnection", row: object) -> None:
        """What the database has answered to `ASK`."""
        if not isinstance(row, tuple):
            return
        pid, isolation = row
        if pid != connection.info.backend_pid:
            self._found("the session is not the one that was begun")
        elif self.pooled is None:
            self.pooled = False
        for name in _REPORTED:
            said = connection.info.parameter_status(name) or ""
            if said and not said.startswith(PINNED[name]):
                raise _unfit(name, said)
        if isolation != PINNED["default_transaction_isolation"]:
            raise _unfit("default_transaction_isolation", str(isolation))

    def learn(self, error: BaseException) -> None:
        """An error of a call may show that prepared statements do not last."""
        if isinstance(error, psycopg.Error) and error.sqlstate in _FOREIGN_STATEMENTS:
            self._found("prepared statements do not last")

    def _found(self, how: str) -> None:
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


_ways: dict[str, Way] = {}


def way_to(dsn: str) -> Way:
    """What is known of the way that this DSN names."""
    return _ways.setdefault(dsn, Way())
