"""Who looks at the dashboard, and whether a request really is theirs.

A token is exchanged for a session, which is good for the dashboard only and ends with signing out, with the token, or
after a week. It is kept in a cookie that scripts cannot read and other sites cannot send. Writes come from our own
pages only: the browser says where a request comes from, and the page has to know a value that other sites cannot read.
"""

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from leasehold.http.auth import Caller, netloc
from leasehold.http.body import header
from leasehold.http.problems import Problem
from leasehold.http.runtime import Runtime
from leasehold.tokens import make_token

LOOKING: Final = ("read", "operate")
"""The scopes that open the dashboard."""

SESSION_COOKIE: Final = "leasehold_session"
CSRF_COOKIE: Final = "leasehold_csrf"
CSRF_HEADER: Final = b"x-leasehold-csrf"
SESSION: Final = timedelta(days=7)
"""How long a browser stays signed in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Somebody who may look."""

    caller: Caller
    read_only: bool
    """The dashboard is, whatever the token allows."""
    csrf: str

    @property
    def may_write(self) -> bool:
        """Whether controls are shown, and obeyed."""
        return "operate" in self.caller.scopes and not self.read_only

    @property
    def sees_content(self) -> bool:
        """Whether payloads, results and the text of errors are shown: as under /ops, with operate only."""
        return "operate" in self.caller.scopes

    @property
    def restricted(self) -> bool:
        """Whether this is for some queues or kinds only."""
        return self.caller.restricted

    @property
    def signed_in(self) -> bool:
        """Whether there is anything to sign out of."""
        return self.caller.token is not None


async def admit(request: Request, parts: Runtime) -> Visitor:
    """The visitor, or a Problem."""
    jar = request.cookies
    caller = await _admit(request, parts, jar.get(SESSION_COOKIE, ""), session=True)
    read_only = parts.settings.dashboard == "read-only"
    return Visitor(caller=caller, read_only=read_only, csrf=jar.get(CSRF_COOKIE) or secrets.token_urlsafe(24))


async def open_session(request: Request, parts: Runtime, token: str) -> tuple[Caller, str]:
    """The holder of an API token and the text of a new session, or a Problem."""
    caller = await _admit(request, parts, token, session=False)
    made = make_token(UUID((await parts.database.anew_ids(1))[0]))
    call = parts.database.store.create_token(
        made.id,
        caller.name,
        made.hash(),
        scopes=sorted(caller.scopes & set(LOOKING)),
        queues=None if caller.queues is None else sorted(caller.queues),
        kinds=None if caller.kinds is None else sorted(caller.kinds),
        expires_at=datetime.now(UTC) + SESSION,
        created_by=caller.token,
        session=True,
    )
    if caller.token is not None:  # else no token is needed, and nothing could end with it
        await parts.database.arun(call)
    return caller, made.reveal()


async def end_session(request: Request, parts: Runtime) -> None:
    """Sign out: the session is good for nothing any more, wherever its cookie may be."""
    try:
        caller = await _admit(request, parts, request.cookies.get(SESSION_COOKIE, ""), session=True)
    except Problem:
        return  # it has ended already, or there is none
    if caller.token is not None:
        await parts.database.arun(parts.database.store.revoke_token(caller.token))
        parts.gate.forget(caller.token)


async def _admit(request: Request, parts: Runtime, token: str, *, session: bool) -> Caller:
    return await parts.gate.admit(_with_token(request.scope, token), *LOOKING, session=session)


def _with_token(scope: Scope, token: str) -> Scope:
    text = token.encode("ascii", "replace")
    others = [(name, value) for name, value in scope["headers"] if name != b"authorization"]
    return {**scope, "headers": [*others, (b"authorization", b"Bearer " + text)] if text else others}


def check_write(request: Request, visitor: Visitor) -> None:
    """Refuse what this visitor may not do, and what another site made their browser send."""
    check_origin(request)
    sent = (header(request.scope, CSRF_HEADER) or b"").decode("latin-1")
    expected = request.cookies.get(CSRF_COOKIE, "")
    if not expected or not secrets.compare_digest(sent.encode(), expected.encode()):
        raise Problem("forbidden", "the page is too old, or this is not its request; load it again")
    if visitor.read_only:
        raise Problem("forbidden", "this dashboard is read-only")
    if not visitor.may_write:
        raise Problem("forbidden", "this needs a token with the scope operate")


def check_origin(request: Request) -> None:
    """Refuse what does not come from a page of this very origin."""
    scope = request.scope
    site = header(scope, b"sec-fetch-site")
    origin = header(scope, b"origin")
    if site is not None and site != b"same-origin":
        raise Problem("forbidden", "another site made this request")
    if origin is None:
        if site is None:
            raise Problem("forbidden", "it does not say where it comes from; browsers do")
        return
    # The scheme is not compared: behind a proxy that ends TLS we are asked by http. The host is.
    if netloc(origin) != (header(scope, b"host") or b""):
        raise Problem("forbidden", "another site made this request")


def is_https(request: Request) -> bool:
    """Whether the browser speaks TLS with us, or with a proxy of ours."""
    return request.url.scheme == "https" or header(request.scope, b"x-forwarded-proto") == b"https"


def keep_csrf(request: Request, response: Response, visitor: Visitor) -> None:
    """Give a browser that has none the value that its writes have to carry."""
    if request.cookies.get(CSRF_COOKIE) != visitor.csrf:
        _set(request, response, CSRF_COOKIE, visitor.csrf, None)


def keep_session(request: Request, response: Response, session: str) -> None:
    """Let the browser keep it."""
    _set(request, response, SESSION_COOKIE, session, round(SESSION.total_seconds()))


def drop_session(request: Request, response: Response) -> None:
    """Let the browser forget it, and the API's token, which releases before kept in a cookie."""
    for name in (SESSION_COOKIE, "leasehold_token"):
        _set(request, response, name, "", 0)


def keep(request: Request, response: Response, name: str, value: str) -> None:
    """Let the browser keep something until it is closed."""
    _set(request, response, name, value, None)


def forget(request: Request, response: Response, name: str) -> None:
    """Let the browser forget something that it kept."""
    _set(request, response, name, "", 0)


def _set(request: Request, response: Response, name: str, value: str, age: int | None) -> None:
    path = request.scope.get("root_path", "") or "/"
    response.set_cookie(name, value, max_age=age, path=path, secure=is_https(request), httponly=True, samesite="strict")
