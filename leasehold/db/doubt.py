"""Commits that the server reports as done although it does not know whether they will outlive it.

With synchronous replication a commit waits for the standby. Somebody may cancel that wait; the server then answers as
if all were well, with a mere warning, and the commit is gone if the standby is promoted. So after such a warning we
write something else and wait for that to be replicated: changes arrive in their order, the first before the second.
"""

from typing import Final

import psycopg
from psycopg.errors import Diagnostic

_WAIT: Final = "SyncRepWaitForLSN"
"""The function of the server that gives the warning; its text depends on the server's language."""

_BARRIER: Final = "select pg_logical_emit_message(true, 'leasehold', '')"
"""A commit that changes no table."""

_doubted: set[int] = set()


def watch(connection: psycopg.Connection | psycopg.AsyncConnection) -> None:
    """Listen to the warnings of a new connection."""
    number = id(connection)
    _doubted.discard(number)  # of a predecessor at the same place in memory

    def hear(warning: Diagnostic) -> None:
        if warning.source_function == _WAIT:
            _doubted.add(number)

    connection.add_notice_handler(hear)


def settle(connection: psycopg.Connection) -> None:
    """Call this before the answer to a call is believed. OperationalError: nobody knows, as after a lost connection."""
    while _doubted and id(connection) in _doubted:
        _doubted.discard(id(connection))
        connection.execute(_BARRIER)


async def asettle(connection: psycopg.AsyncConnection) -> None:
    """The same for coroutines."""
    while _doubted and id(connection) in _doubted:
        _doubted.discard(id(connection))
        await connection.execute(_BARRIER)
