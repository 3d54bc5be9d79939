"""In and out: a token, once, and then a cookie."""

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from leasehold.http.body import read_model
from leasehold.http.problems import Problem
from leasehold.http.runtime import Runtime
from leasehold.http.schemas import Asked
from leasehold.web.render import page
from leasehold.web.session import admit, admit_token, check_origin, drop_token, keep_token


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
    """Take a token, and keep it where scripts cannot read it."""
    check_origin(request)
    token = (await read_model(request, SignIn, parts.settings)).token.strip()
    try:
        caller = await admit_token(request, parts, token)
    except Problem as problem:
        if problem.name == "unauthorized":
            raise Problem("unauthorized", "this token is unknown, revoked or expired") from None
        raise
    response = JSONResponse({"message": f"signed in as {caller.name}", "go": "/"})
    keep_token(request, response, token)
    return response


async def sign_out(request: Request, parts: Runtime) -> Response:  # noqa: ARG001 (one shape for all of these)
    """Forget the token; it stays good for whoever else has it."""
    check_origin(request)
    response = JSONResponse({"message": "signed out", "go": "/sign-in"})
    drop_token(request, response)
    return response
