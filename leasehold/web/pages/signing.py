"""In and out: a token, once, and then a session."""

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from leasehold.http.body import read_model
from leasehold.http.problems import Problem
from leasehold.http.runtime import Runtime
from leasehold.http.schemas import Asked
from leasehold.web.render import page
from leasehold.web.session import admit, check_origin, drop_session, end_session, keep_session, open_session


class SignIn(Asked):
    """What the sign-in page sends."""

    token: str


async def form(request: Request, parts: Runtime) -> Response:
    """Where a token is asked for; whoever needs none is led on."""
    try:
        await admit(request, parts)
    except Problem as problem:
        if problem.name != "unauthorized":
            raise
        return page(request, "sign-in.html", {"visitor": None, "demo": False})
    return RedirectResponse(f"{request.scope.get('root_path', '')}/", status_code=303)


async def sign_in(request: Request, parts: Runtime) -> Response:
    """Take a token once, and keep a session where scripts cannot read it."""
    check_origin(request)
    token = (await read_model(request, SignIn, parts.settings)).token.strip()
    try:
        caller, session = await open_session(request, parts, token)
    except Problem as problem:
        if problem.name == "unauthorized":
            raise Problem("unauthorized", "this token is unknown, revoked or expired") from None
        raise
    response = JSONResponse({"message": f"signed in as {caller.name}", "go": "/"})
    keep_session(request, response, session)
    return response


async def sign_out(request: Request, parts: Runtime) -> Response:
    """End the session; the token stays good."""
    check_origin(request)
    await end_session(request, parts)
    response = JSONResponse({"message": "signed out", "go": "/sign-in"})
    drop_session(request, response)
    return response
