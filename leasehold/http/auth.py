"""Bearer tokens: their scopes, queues and kinds, and their rate.

The database has the tokens; a server caches each for a moment, so that revoking takes effect within that time.
"""

import ipaddress
import math
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

from starlette.types import Scope

from leasehold.db.database import Database
from leasehold.db.store import StoredToken
from leasehold.errors import DatabaseUnavailable
from leasehold.http.body import header
from leasehold.http.cache import Cache
from leasehold.http.front import RATE
from leasehold.http.problems import Problem
from leasehold.http.settings import ApiSettings
from leasehold.operate.caller import ANONYMOUS, Caller
from leasehold.tokens import TokenText, parse_token

_MOST_REMEMBERED: Final = 10_000


def check_host(scope: Scope) -> None:
    """Refuse, where no token is needed, requests that do not come from this machine: those that a proxy passed on, and
    those of a page whose host name resolves to this machine (DNS rebinding), which the Host header shows.
    """
    host = b""
    for name, value in scope["headers"]:
        if name in {b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"}:
            shown = name.decode("latin-1")
            raise Problem("forbidden", f"a proxy passed this on ({shown}): make a token, `leasehold tokens create`")
        if name == b"host":
            host = host or value
    if not _is_local(host):
        raise Problem("forbidden", "without tokens this is served to 127.0.0.1 and localhost only")


@lru_cache(maxsize=100)
def _is_local(host: bytes) -> bool:
    try:
        name = urlsplit(f"//{host.decode('latin-1')}").hostname or ""
        return name == "localhost" or name.endswith(".localhost") or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def check_origin(scope: Scope, allowed: frozenset[str] = frozenset()) -> None:
    """Refuse, where no token is needed, what a page of another origin makes a browser send. What a page may read of an
    answer is up to the browser, so this is about requests that change something.
    """
    if scope["method"] in {"GET", "HEAD"}:
        return
    site, origin = header(scope, b"sec-fetch-site"), header(scope, b"origin")
    if site is None and origin is None:
        return  # not a browser
    if origin is not None and origin.decode("latin-1") in allowed:
        return
    # The scheme is not compared: behind a proxy that ends TLS we are asked by http. The host is, unless the browser
    # says that the origin is the same: a proxy may have changed the Host header.
    hosts = (header(scope, b"host"), header(scope, b"x-forwarded-host"))
    is_own = origin is None or site == b"same-origin" or netloc(origin) in hosts
    if site not in {None, b"same-origin", b"none"} or not is_own:
        raise Problem("forbidden", "a page of another origin made this request, and no token is asked for here")


def netloc(origin: bytes) -> bytes:
    """Return the host and port of an origin; nothing of what is none."""
    try:
        return urlsplit(origin.decode("latin-1")).netloc.encode("latin-1")
    except ValueError:
        return b""


@dataclass(slots=True)
class _Allowance:
    """How many requests a token may make right now."""

    rate: float
    level: float
    at: float = field(default_factory=time.monotonic)

    def take(self) -> float:
        """Return 0 and count one request; or return the seconds until there is room for one."""
        now = time.monotonic()
        self.level = min(max(1.0, self.rate), self.level + (now - self.at) * self.rate)
        self.at = now
        if self.level < 1.0:
            return (1.0 - self.level) / self.rate
        self.level -= 1.0
        return 0.0


class _Admitted(NamedTuple):
    """A caller with a live token."""

    caller: Caller
    token: StoredToken
    until: float  # when to ask the database again


class Gate:
    """Admits callers. One for each event loop."""

    def __init__(self, database: Database, settings: ApiSettings) -> None:
        self._database = database
        self._settings = settings
        self._known = Cache(_MOST_REMEMBERED)
        self._buckets: OrderedDict[UUID, _Allowance] = OrderedDict()
        self._admitted: OrderedDict[bytes, _Admitted] = OrderedDict()
        """Callers by the hash of their Authorization header."""
        self._found: OrderedDict[UUID, None] = OrderedDict()
        """Tokens that were found once: an id that is made up is never among them."""
        self._lookups = _Allowance(settings.unknown_tokens, settings.unknown_tokens)
        """Of tokens that were never found."""

    async def admit(self, scope: Scope, *scopes: str, session: bool = False) -> Caller:
        """Return the caller of this request, who has one of the scopes. `session`: with a token of a browser only."""
        try:
            return await self._admit(scope, scopes, session=session)
        except DatabaseUnavailable as error:
            error.sent = False  # what the request is about was not sent
            raise

    async def _admit(self, scope: Scope, scopes: tuple[str, ...], *, session: bool) -> Caller:
        mode = self._settings.tokens
        if mode is False or (mode == "auto" and await self._is_open()):
            if mode == "auto":
                check_host(scope)
            check_origin(scope, self._settings.origins)
            return ANONYMOUS
        value = header(scope, b"authorization") or b""
        known = self._admitted.get(key := sha256(value).digest())
        if known is None or time.monotonic() >= known.until:
            known = await self._look_up(key, token_of(value))
        # One answer for all of these: it does not show which tokens exist.
        if known is None or known.token.session is not session:
            raise _unauthorized()
        if known.token.rate is not None:
            self._ration(scope, known.token.id, known.token.rate)
        if known.caller.scopes.isdisjoint(scopes):
            raise Problem("forbidden", f"this needs a token with the scope {' or '.join(scopes)}")
        return known.caller

    async def _look_up(self, key: bytes, token: TokenText | None) -> _Admitted | None:
        """Return the caller with this token, as the database knows it; None: the token is not one or is not live."""
        self._admitted.pop(key, None)
        if token is None:
            return None
        # At a rate: ids may be made up without end.
        if token.id not in self._found and token.id not in self._known and (wait := self._lookups.take()):
            raise Problem("rate-limited", "too many tokens that are not known here", retry_after=wait)
        stored, until = await self._recall(token.id)
        if stored is not None:
            _remember(self._found, token.id, None)
        if stored is None or not token.fits(stored.secret_hash) or not stored.live:
            return None
        caller = Caller(stored.name, stored.scopes, stored.queues, stored.kinds, stored.id, stored.namespace)
        admitted = _Admitted(caller, stored, until)
        if token.id in self._known:  # else it was revoked meanwhile
            _remember(self._admitted, key, admitted)
        return admitted

    def forget(self, token: UUID) -> None:
        """Ask the database when this token comes next: it was revoked here."""
        self._known.forget(token)
        for key in [key for key, one in self._admitted.items() if one.token.id == token]:
            del self._admitted[key]

    async def check(self, caller: Caller) -> None:
        """Refuse a caller, admitted some time ago, whose token is no longer live."""
        if caller.token is not None:
            stored, _ = await self._recall(caller.token)
            if stored is None or not stored.live:
                raise _unauthorized()

    def _ration(self, scope: Scope, token: UUID, rate: float) -> None:
        bucket = self._buckets.get(token)
        if bucket is None or bucket.rate != rate:
            bucket = _Allowance(rate, max(1.0, rate))
            _remember(self._buckets, token, bucket)
        wait = bucket.take()
        scope[RATE] = rate, int(bucket.level), math.ceil(wait or max(0.0, 1.0 - bucket.level) / rate)
        if wait:
            raise Problem("rate-limited", f"this token has {rate:g} requests a second", retry_after=wait)

    async def _is_open(self) -> bool:
        """Return whether no token was ever made. Revoked ones count: revoking the last one must not open a server."""
        database, seconds = self._database, self._settings.token_seconds
        return not await self._known.get(None, seconds, lambda: database.arun(database.store.tokens(1)))

    async def _recall(self, token: UUID) -> tuple[StoredToken | None, float]:
        """Return what the database knows of a token, and when to ask again."""
        return await self._known.get(token, self._settings.token_seconds, lambda: self._ask(token))

    async def _ask(self, token: UUID) -> tuple[StoredToken | None, float]:
        until = time.monotonic() + self._settings.token_seconds
        return await self._database.arun(self._database.store.token(token)), until


def _remember(known: OrderedDict[Any, Any], key: object, value: object) -> None:
    known[key] = value
    if len(known) > _MOST_REMEMBERED:
        known.popitem(last=False)


def _unauthorized() -> Problem:
    return Problem("unauthorized", "send a valid token", headers={"www-authenticate": 'Bearer realm="leasehold"'})


def token_of(value: bytes | None) -> TokenText | None:
    """Return the token in an Authorization header, if there is one."""
    if value is None or value[:7].lower() != b"bearer ":
        return None
    return parse_token(value[7:].decode("latin-1").strip())
