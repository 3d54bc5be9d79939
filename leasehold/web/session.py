"""Who uses the dashboard, signing in and out, and whether a request comes from one of the dashboard's own pages.

A token is exchanged for a session, which is good for the dashboard only and ends with signing out, with the token, or
after a week. It is kept in a cookie that scripts cannot read and other sites cannot send. Writes come from our own
pages only: the browser says where a request comes from, and the page has to know a value that other sites cannot read.
"""

import contextlib
import secrets
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from leasehold.http.auth import netloc
from leasehold.http.body import header, read_model
from leasehold.http.ops.serving import READS
from leasehold.http.problems import Problem
from leasehold.http.runtime import Runtime
from leasehold.http.schemas import Asked
from leasehold.operate.caller import Caller
from leasehold.tokens import make_token
from leasehold.web.render import page

SESSION_COOKIE: Final = "leasehold_session"
CSRF_COOKIE: Final = "leasehold_csrf"
SESSION: Final = timedelta(days=7)
"""How long a browser stays signed in."""


async def admit(request: Request, parts: Runtime, token: str | None = None) -> Caller:
    """Return who signed in with this browser or, to sign in, the holder of an API token; raise a Problem otherwise."""
    text = (request.cookies.get(SESSION_COOKIE, "") if token is None else token).encode("ascii", "replace")
    headers = [(name, value) for name, value in request.scope["headers"] if name != b"authorization"]
    if text:
        headers.append((b"authorization", b"Bearer " + text))
    return await parts.gate.admit({**request.scope, "headers": headers}, *READS, session=token is None)


def check_csrf(request: Request) -> None:
    """Refuse a write that does not come from a page of ours, or comes from one that is too old."""
    check_same_origin(request)
    sent, expected = header(request.scope, b"x-leasehold-csrf") or b"", request.cookies.get(CSRF_COOKIE, "")
    if not expected or not secrets.compare_digest(sent, expected.encode()):
        raise Problem("forbidden", "the page is too old, or this is not its request; load it again")


def check_same_origin(request: Request) -> None:
    """Refuse what does not come from a page of this very origin: unlike the API, also what no browser has sent."""
    site, origin = (header(request.scope, name) for name in (b"sec-fetch-site", b"origin"))
    if site is None and origin is None:
        raise Problem("forbidden", "it does not say where it comes from; browsers do")
    # The scheme is not compared: behind a proxy that ends TLS we are asked by http. The host is.
    foreign = origin is not None and netloc(origin) != (header(request.scope, b"host") or b"")
    if foreign or site not in {None, b"same-origin"}:
        raise Problem("forbidden", "another site made this request")


def set_cookie(request: Request, response: Response, name: str, value: str, seconds: int | None = None) -> None:
    """Let the browser keep a value where scripts cannot read it: for so long, or until it is closed; 0: forget it."""
    path = request.scope.get("root_path", "") or "/"
    secure = request.url.scheme == "https" or header(request.scope, b"x-forwarded-proto") == b"https"
    response.set_cookie(name, value, max_age=seconds, path=path, secure=secure, httponly=True, samesite="strict")


# -- signing in and out


class SignIn(Asked):
    """What the sign-in page sends."""

    token: str


async def sign_in_form(request: Request, parts: Runtime) -> Response:
    """Ask for a token; redirect a visitor who needs none."""
    try:
        await admit(request, parts)
    except Problem as problem:
        if problem.name != "unauthorized":
            raise
        return page(request, "sign-in.html", {"visit": None})
    return RedirectResponse(f"{request.scope.get('root_path', '')}/", status_code=303)


async def sign_in(request: Request, parts: Runtime) -> Response:
    """Take a token once, and keep a session where scripts cannot read it."""
    check_same_origin(request)
    token = (await read_model(request, SignIn)).token.strip()
    try:
        caller = await admit(request, parts, token)
    except Problem as problem:
        if problem.name == "unauthorized":
            raise Problem("unauthorized", "this token is unknown, revoked or expired") from None
        raise
    session = make_token(UUID((await parts.database.anew_ids(1))[0]))
    if caller.token is not None:  # else no token is needed, and nothing could end with it
        call = parts.database.store.create_token(
            session.id,
            caller.name,
            session.hash(),
            scopes=sorted(caller.scopes & set(READS)),
            **caller.narrow(),
            expires_at=datetime.now(UTC) + SESSION,
            created_by=caller.token,
            session=True,
        )
        await parts.database.arun(call)
    response = JSONResponse({"message": f"signed in as {caller.name}", "go": "/"})
    set_cookie(request, response, SESSION_COOKIE, session.reveal(), round(SESSION.total_seconds()))
    return response


async def sign_out(request: Request, parts: Runtime) -> Response:
    """End the session, wherever its cookie may be; the token stays good."""
    check_same_origin(request)
    with contextlib.suppress(Problem):  # it has ended already, or there is none
        token = (await admit(request, parts)).token
        if token is not None:
            await parts.database.arun(parts.database.store.revoke_token(token))
            parts.gate.forget(token)
    response = JSONResponse({"message": "signed out", "go": "/sign-in"})
    set_cookie(request, response, SESSION_COOKIE, "", 0)
    return response
