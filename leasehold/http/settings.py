"""The settings of the HTTP API."""

import math
import os
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

from leasehold._facts import MAX_PAYLOAD_BYTES
from leasehold.errors import ConfigError

Tokens: TypeAlias = bool | Literal["auto"]
"""Whether a request needs a token: True always, False never, `auto` as soon as one was ever made."""

Dashboard: TypeAlias = Literal["on", "read-only", "off"]
"""Whether the dashboard is served, and whether it can change anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """The limits and patience of one API server."""

    tokens: Tokens = True
    dashboard: Dashboard = "on"
    origins: frozenset[str] = frozenset()
    """Where no token is needed: other origins whose pages may change something, such as `https://app.example`."""
    hidden_fields: frozenset[str] = frozenset()
    """Fields of payloads and results whose values the dashboard does not show, at any depth, in small letters."""
    body_bytes: int = MAX_PAYLOAD_BYTES
    """The largest body of one job, or of any other request."""
    batch_bytes: int = 8 * MAX_PAYLOAD_BYTES
    """The largest body of many jobs."""
    batch_jobs: int = 1000
    """The most jobs in one body."""
    body_seconds: float = 10.0
    """How long a client may take to send a body."""
    head_seconds: float = 10.0
    """How long a client may take to send a request's target and headers, from connecting or from their first byte."""
    head_bytes: int = 64 * 1024
    """How large these may be; the same for what is around a body: sizes and extensions of chunks, trailers."""
    linger_seconds: float = 5.0
    """How long the rest of a refused body is read and thrown away, so that its sender gets to read the answer."""
    send_seconds: float = 30.0
    """How long a client may leave an answer unread once all buffers are full."""
    database_seconds: float = 1.5
    """How long a request waits for the database before it is answered with 503."""
    coalesced: int = 200
    """The most submissions that go to the database in one statement."""
    senders: int = 2
    """How many such statements are under way at the same time, each on a connection of its own."""
    waiting: int = 4000
    """How many submissions may wait to be sent; further ones are answered with 503 at once."""
    longest_wait: int = 60
    """The longest `?wait=`, in seconds."""
    poll_seconds: float = 0.25
    """How often the jobs that requests wait for are read, all in one statement."""
    watchers: int = 5000
    """How many requests may wait for jobs; further ones are answered with 503 at once."""
    watchers_each: int = 1000
    """How many of these may be of one token."""
    unknown_tokens: float = 100.0
    """How many tokens that are not known yet are looked up a second; further ones are answered with 429."""
    keepalive_seconds: float = 15.0
    """How often an event stream says that it is still there."""
    token_seconds: float = 2.0
    """How long a token is known before the database is asked again: revocation takes at most as long."""

    @classmethod
    def from_env(cls, **given: Any) -> "ApiSettings":
        """Read each number from `LEASEHOLD_API_` and its name, as in LEASEHOLD_API_BODY_SECONDS; what is given wins.

        The dashboard has LEASEHOLD_DASHBOARD and LEASEHOLD_HIDDEN_FIELDS, the origins LEASEHOLD_ORIGINS.
        """
        found: dict[str, Any] = {
            field.name: _number(f"LEASEHOLD_API_{field.name.upper()}", field.default)
            for field in fields(cls)
            if type(field.default) in {int, float}
        }
        dashboard = (os.environ.get("LEASEHOLD_DASHBOARD") or "on").strip().lower()
        if dashboard not in get_args(Dashboard):
            known = ", ".join(get_args(Dashboard))
            raise ConfigError(f"LEASEHOLD_DASHBOARD={dashboard[:40]!r} unknown", hint=f"known: {known}")
        hidden, origins = _listed("LEASEHOLD_HIDDEN_FIELDS"), _listed("LEASEHOLD_ORIGINS")
        found |= {"dashboard": dashboard, "hidden_fields": frozenset(map(str.casefold, hidden)), "origins": origins}
        return cls(**(found | given))


def _listed(name: str) -> frozenset[str]:
    return frozenset(part.strip() for part in os.environ.get(name, "").split(",") if part.strip())


def _number(name: str, default: Any) -> Any:
    text = (os.environ.get(name) or "").strip()
    if not text:
        return default
    kind = type(default)
    try:
        number = kind(text)
    except ValueError:
        number = kind(0)
    if number <= 0 or not math.isfinite(number):
        what = "a whole number" if kind is int else "a number"
        raise ConfigError(f"{name}={text[:40]!r} is not {what} above 0", hint=f"without it, it is {default:g}")
    return number
