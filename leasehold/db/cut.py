"""An end to calls that nobody answers."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg


@contextmanager
def cut_off(connection: psycopg.AsyncConnection, deadline: float) -> Iterator[None]:
    """Break the connection when the time is over, so that whoever waits on it gets an OperationalError.

    Not by cancelling: psycopg would then ask the server, which may be the one that does not answer, to cancel, and wait
    for it. And a write that has been sent must not be cancelled: with synchronous replication it may be half done.
    """
    loop = asyncio.get_running_loop()
    knife = loop.call_later(max(0.0, deadline - time.monotonic()), _shut, connection)
    try:
        yield
    finally:
        knife.cancel()


def _shut(connection: psycopg.AsyncConnection) -> None:
    # Shut, not closed: the event loop still listens to the descriptor and must hear of it.
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)
