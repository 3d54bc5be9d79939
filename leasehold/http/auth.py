"""Who may do what: bearer tokens, their scopes, their queues and kinds, their rate.

The database knows the tokens; a server remembers each for a moment, and so a revoked one for as long.
"""

import asyncio
import ipaddress
import math
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import UUID

from fastapi import Request
from starlette.types import Scope

from leasehold.db.pool import Database
from leasehold.db.store import Seen, StoredToken
from leasehold.http.body import header
from leasehold.http.front import RATE
from leasehold.http.problems import Problem
from leasehold.http.settings import ApiSettings
from leasehold.tokens import SCOPES, TokenText, parse_token

_MOST_REMEMBERED: Final = 10_000


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what may be shown and done."""

    name: str
    scopes: frozenset[str]
    queues: frozenset[str] | None = None
    """The only queues; None: all."""
    kinds: frozenset[str] | None = None
    """The only kinds; None: all."""
    token: UUID | None = None
    """None: no token was needed."""
    namespace: str | None = None
    """Whose jobs are the caller's own."""

    @property
    def restricted(self) -> bool:
        """Whether this is for some queues or kinds only."""
        return self.queues is not None or self.kinds is not None

    @property
    def key_namespace(self) -> str | None:
        """What keeps the caller's idempotency keys apart from those of others; None: nothing does."""
        return self.namespace if self.restricted else None

    @property
    def sees_all(self) -> bool:
        """Whether this sees the jobs of other namespaces too, among its queues and kinds."""
        return "read" in self.scopes

    def may_see(self, job: Seen, *scopes: str) -> bool:
        """Whether the job is the caller's business: with one of the scopes any of its queues and kinds, else only its
        namespace's own.
        """
        return self.may(queue=job.queue, kind=job.kind) and (
            job.origin == self.namespace or not self.scopes.isdisjoint(scopes)
        )

    def may(self, *, queue: str, kind: str) -> bool:
        """Whether jobs of this queue and kind are the caller's business."""
        return (self.queues is None or queue in self.queues) and (self.kinds is None or kind in self.kinds)

    def may_submit(self, *, queue: str | None, kind: str) -> bool:
        """Whether such a job may be the caller's. Without a queue only the database knows which one it will be."""
        return (queue is None or self.queues is None or queue in self.queues) and (
            self.kinds is None or kind in self.kinds
        )


ANYBODY: Final = Caller("anybody", frozenset(SCOPES))
"""Whoever asks a server that needs no tokens."""


_FORWARDED: Final = frozenset({b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"})
"""Headers of a request that a proxy has passed on."""

_SAFE: Final = frozenset({"GET", "HEAD"})


def check_host(scope: Scope) -> None:
    """Where no token is needed, a page in a browser of this machine could do anything: a page whose name was made to
    lead here, which the Host header shows. And so could all who reach a proxy of this machine.
    """
    for name, _ in scope["headers"]:
        if name in _FORWARDED:
            shown = name.decode("latin-1")
            raise Problem("forbidden", f"a proxy passed this on ({shown}): make a token, `leasehold tokens create`")
    host = hostname(header(scope, b"host"))
    if host == "localhost" or host.endswith(".localhost"):
        return
    try:
        if ipaddress.ip_address(host).is_loopback:
            return
    except ValueError:
        pass
    raise Problem("forbidden", "without tokens this is served to 127.0.0.1 and localhost only")


def check_origin(scope: Scope, allowed: frozenset[str] = frozenset()) -> None:
    """Where no token is needed, refuse what a page of another origin makes a browser send. What a page may read of an
    answer is up to the browser, so this is about requests that change something.
    """
    if scope["method"] in _SAFE:
        return
    site = origin = None
    for name, value in scope["headers"]:
        if name == b"sec-fetch-site":
            site = value
        elif name == b"origin":
            origin = value
    if site is None and origin is None:
        return  # not a browser
    if origin is not None and origin.decode("latin-1") in allowed:
        return
    # The scheme is not compared: behind a proxy that ends TLS we are asked by http. The host is.
    if site not in {None, b"same-origin", b"none"} or (origin is not None and not _is_own(scope, origin, site)):
        raise Problem("forbidden", "a page of another origin made this request, and no token is asked for here")


def _is_own(scope: Scope, origin: bytes, site: bytes | None) -> bool:
    asked = (header(scope, b"host"), header(scope, b"x-forwarded-host"))
    # A proxy may have changed the Host header. The browser knows, if it is one that says so.
    return site == b"same-origin" or netloc(origin) in asked


def netloc(origin: bytes) -> bytes:
    """The host and port of an origin; nothing of what is none."""
    try:
        return urlsplit(origin.decode("latin-1")).netloc.encode("latin-1")
    except ValueError:
        return b""


def hostname(host: bytes | None) -> str:
    """The name or address in a Host header; nothing of what is none."""
    try:
        return urlsplit(f"//{(host or b'').decode('latin-1')}").hostname or ""
    except ValueError:
        return ""


class Need:
    """A FastAPI dependency: the caller, who has at least one of the scopes."""

    def __init__(self, *scopes: str) -> None:
        self.scopes = scopes

    async def __call__(self, request: Request) -> Caller:
        """The caller, or a Problem."""
        runtime = await request.app.state.leasehold.runtime()
        return await runtime.gate.admit(request.scope, *self.scopes)  # type: ignore[no-any-return]


@dataclass(slots=True)
class _Bucket:
    """How many requests a token may make right now."""

    rate: float
    level: float
    at: float = field(default_factory=time.monotonic)

    def take(self) -> float:
        """0 and one request less; or the seconds until there is one."""
        now = time.monotonic()
        self.level = min(max(1.0, self.rate), self.level + (now - self.at) * self.rate)
        self.at = now
        if self.level < 1.0:
            return (1.0 - self.level) / self.rate
        self.level -= 1.0
        return 0.0


@dataclass(slots=True)
class _Remembered:
    """What the database said of a token, or is about to say."""

    answer: "asyncio.Future[Any]"
    until: float


class Gate:
    """Lets callers in. One for each event loop."""

    def __init__(self, database: Database, settings: ApiSettings) -> None:
        self._database = database
        self._settings = settings
        self._known: OrderedDict[UUID | None, _Remembered] = OrderedDict()
        self._buckets: OrderedDict[UUID, _Bucket] = OrderedDict()
        self._good: OrderedDict[UUID, None] = OrderedDict()
        """Tokens that were found once: an id that is made up is never among them."""
        self._strangers = _Bucket(settings.strangers, settings.strangers)

    async def admit(self, scope: Scope, *scopes: str, session: bool = False) -> Caller:
        """The caller of this request, who has one of the scopes. `session`: by a browser's token, and no other."""
        mode = self._settings.tokens
        if mode is False or (mode == "auto" and not await self._any_token()):
            if mode == "auto":
                check_host(scope)
            check_origin(scope, self._settings.origins)
            return ANYBODY
        token = token_of(header(scope, b"authorization"))
        stored: StoredToken | None = None
        if token is not None:
            stored = await (self._recall(token.id) if token.id in self._good else self._stranger(token.id))
        # One answer for all of these: it tells nobody which tokens exist.
        if token is None or stored is None or not token.fits(stored.secret_hash) or not stored.live:
            raise _unauthorized()
        if stored.session is not session:
            raise _unauthorized()
        if stored.rate is not None:
            self._ration(scope, stored, stored.rate)
        if stored.scopes.isdisjoint(scopes):
            raise Problem("forbidden", f"this needs a token with the scope {' or '.join(scopes)}")
        return Caller(stored.name, stored.scopes, stored.queues, stored.kinds, stored.id, stored.namespace)

    async def _stranger(self, token: UUID) -> StoredToken | None:
        """What the database says of a token that was never found. At a rate: such may be made up without end."""
        if token not in self._known and (wait := self._strangers.take()):
            raise Problem("rate-limited", "too many tokens that are not known here", retry_after=wait)
        stored: StoredToken | None = await self._recall(token)
        if stored is not None:
            self._good[token] = None
            if len(self._good) > _MOST_REMEMBERED:
                self._good.popitem(last=False)
        return stored

    def forget(self, token: UUID) -> None:
        """Ask the database when this token comes next: it was revoked here."""
        self._known.pop(token, None)

    async def check(self, caller: Caller) -> None:
        """Refuse a caller, admitted some time ago, whose token is no longer good."""
        if caller.token is not None:
            stored: StoredToken | None = await self._recall(caller.token)
            if stored is None or not stored.live:
                raise _unauthorized()

    def _ration(self, scope: Scope, stored: StoredToken, rate: float) -> None:
        bucket = self._buckets.get(stored.id)
        if bucket is None or bucket.rate != rate:
            bucket = self._buckets[stored.id] = _Bucket(rate, max(1.0, rate))
            if len(self._buckets) > _MOST_REMEMBERED:
                self._buckets.popitem(last=False)
        wait = bucket.take()
        scope[RATE] = rate, int(bucket.level), math.ceil(wait or max(0.0, 1.0 - bucket.level) / rate)
        if wait:
            raise Problem("rate-limited", f"this token has {rate:g} requests a second", retry_after=wait)

    async def _any_token(self) -> bool:
        # Revoked ones count: revoking the last one must not open a server.
        return bool(await self._recall(None))

    async def _recall(self, token: UUID | None) -> Any:
        """What the database says of a token, or of None: whether there are any. Asked once by all who wait for it."""
        now = time.monotonic()
        known = self._known.get(token)
        if known is None or now >= known.until or (known.answer.done() and known.answer.exception() is not None):
            store = self._database.store
            call: Any = store.token(token) if token is not None else store.tokens(1)
            task = asyncio.ensure_future(self._database.arun(call))
            known = self._known[token] = _Remembered(task, now + self._settings.token_seconds)
            self._known.move_to_end(token)
            if len(self._known) > _MOST_REMEMBERED:
                self._known.popitem(last=False)
        if known.answer.done():
            return known.answer.result()
        # Shielded: whoever asked first may hang up, and the others still wait.
        return await asyncio.shield(known.answer)


def _unauthorized() -> Problem:
    return Problem("unauthorized", "send a valid token", headers={"www-authenticate": 'Bearer realm="leasehold"'})


def token_of(value: bytes | None) -> TokenText | None:
    """The token in an Authorization header, if there is one."""
    if value is None or value[:7].lower() != b"bearer ":
        return None
    return parse_token(value[7:].decode("latin-1").strip())
