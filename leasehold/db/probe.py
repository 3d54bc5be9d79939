"""Whether a NOTIFY that is sent arrives where somebody listens: behind a pooler in transaction mode it does not."""

from uuid import uuid4

import psycopg
from psycopg import sql

from leasehold.db.dial import Dialer
from leasehold.db.listen import PROBE
from leasehold.db.sqlstates import meaning_of


def hints_arrive(dsn: str, schema: str, *, timeout: float = 3.0) -> bool:
    """Send one hint to ourselves and wait for it, at most `timeout` seconds."""
    dialer = Dialer(dsn, name="leasehold doctor", prepare=False)
    name = f"{PROBE}{uuid4()}"  # workers leave probes that are not their own alone
    try:
        with dialer.connect() as listening, dialer.connect() as speaking:
            listening.execute(sql.SQL("listen {}").format(sql.Identifier(schema)))
            speaking.execute("select pg_notify(%s, %s)", (schema, name))
            return any(heard.payload == name for heard in _until(listening, name, timeout))
    except psycopg.Error as error:
        meaning = meaning_of(error)
        if meaning is None:
            raise
        raise meaning from error


def _until(connection: psycopg.Connection, name: str, timeout: float) -> list[psycopg.Notify]:
    """What arrives until the probe does."""
    heard: list[psycopg.Notify] = []
    for notification in connection.notifies(timeout=timeout):
        heard.append(notification)
        if notification.payload == name:
            break
    return heard
