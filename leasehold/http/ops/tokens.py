"""/ops/tokens: who may use this API."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Request
from fastapi.responses import JSONResponse, Response

from leasehold.http.body import body_of, read_model
from leasehold.http.ops.bulk import BODY_PROBLEMS
from leasehold.http.ops.callers import Operator, check_unrestricted, uuid_of
from leasehold.http.ops.schemas import TokenInfo, TokenList, TokenMade, TokenRequest
from leasehold.http.problems import Problem, responses
from leasehold.http.runtime import runtime
from leasehold.tokens import make_token

router = APIRouter(tags=["ops"])

TokenId = Annotated[
    str,
    Path(
        alias="tokenId",
        description="The token's id.",
        openapi_examples={"a token": {"value": "019a5f2e-7c11-7abc-8def-0123456789ab"}},
        json_schema_extra={"format": "uuid"},
    ),
]
_WHAT = "what concerns tokens"


@router.get("/tokens", operation_id="listTokens", summary="The tokens", response_model=TokenList)
async def list_tokens(request: Request, caller: Operator) -> TokenList:
    """Everything but their secrets, which nobody knows."""
    check_unrestricted(caller, _WHAT)
    parts = await runtime(request)
    found = await parts.database.arun(parts.database.store.tokens())
    return TokenList(
        tokens=[TokenInfo(**{name: getattr(token, name) for name in TokenInfo.model_fields}) for token in found]
    )


@router.post(
    "/tokens",
    operation_id="createToken",
    summary="Make a token",
    status_code=201,
    response_model=TokenMade,
    responses=responses(*BODY_PROBLEMS),
    openapi_extra=body_of(TokenRequest, {"name": "ci", "scopes": ["submit", "read"], "queues": ["mail"]}),
)
async def create_token(request: Request, caller: Operator) -> Response:
    """The answer shows the token, and nothing ever shows it again. It allows nothing that the caller's own does not.

    Without an answer, look for it in the list and revoke it.
    """
    check_unrestricted(caller, _WHAT)
    parts = await runtime(request)
    wanted = await read_model(request, TokenRequest)
    if beyond := set(wanted.scopes) - caller.scopes:
        raise Problem("forbidden", f"your own token does not allow {', '.join(sorted(beyond))}")
    token = make_token(UUID((await parts.database.anew_ids(1))[0]))
    await parts.database.arun(
        parts.database.store.create_token(
            token.id,
            wanted.name,
            token.hash(),
            scopes=sorted(set(wanted.scopes)),
            queues=wanted.queues,
            kinds=wanted.kinds,
            rate=wanted.rate,
            expires_at=wanted.expires_at,
        )
    )
    body = {"id": str(token.id), "token": token.reveal()}
    return JSONResponse(body, status_code=201, headers={"cache-control": "no-store"})


@router.delete(
    "/tokens/{tokenId}",
    operation_id="revokeToken",
    summary="Revoke a token",
    status_code=204,
    response_class=Response,
    responses=responses("not-found"),
)
async def revoke_token(request: Request, caller: Operator, token_id: TokenId) -> Response:
    """It is good for nothing any more, within seconds. Revoking it again changes nothing."""
    check_unrestricted(caller, _WHAT)
    parts = await runtime(request)
    if not await parts.database.arun(parts.database.store.revoke_token(uuid_of(token_id, "token"))):
        raise Problem("not-found", "no such token")
    return Response(status_code=204)
