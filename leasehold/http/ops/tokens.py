"""/ops/tokens: who may use this API."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from leasehold.http.auth import token_of
from leasehold.http.body import KEY_HEADER, body_of, header, header_key, read_model
from leasehold.http.ops.bulk import BODY_PROBLEMS
from leasehold.http.ops.callers import Operator, check_unrestricted, uuid_of
from leasehold.http.ops.schemas import TokenInfo, TokenList, TokenMade, TokenRequest
from leasehold.http.problems import Problem, responses
from leasehold.http.runtime import Runtime, runtime
from leasehold.http.schemas import View
from leasehold.tokens import TokenText, derived_token, make_token

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


class TokenQuery(View):
    """Which page of the tokens."""

    cursor: Annotated[str, Field(max_length=100)] | SkipJsonSchema[None] = Field(
        None, description="Of the page before."
    )
    limit: int = Field(100, ge=1, le=1000, description="At most so many tokens.")


@router.get(
    "/tokens",
    operation_id="listTokens",
    summary="The tokens",
    response_model=TokenList,
    responses=responses("not-found", "invalid-request"),
)
async def list_tokens(request: Request, caller: Operator, query: Annotated[TokenQuery, Query()]) -> TokenList:
    """Everything but their secrets, which are not known. The latest first; browsers' sessions are left out."""
    check_unrestricted(caller, _WHAT)
    parts = await runtime(request)
    after = None if query.cursor is None else uuid_of(query.cursor, "page")
    found = await parts.database.arun(parts.database.store.tokens(query.limit, after))
    shown = [TokenInfo(**{name: getattr(token, name) for name in TokenInfo.model_fields}) for token in found]
    return TokenList(tokens=shown, cursor=str(found[-1].id) if len(found) == query.limit else None)


@router.post(
    "/tokens",
    operation_id="createToken",
    summary="Make a token",
    status_code=201,
    response_model=TokenMade,
    responses=responses(*BODY_PROBLEMS, "idempotency-conflict"),
    openapi_extra={
        "parameters": [KEY_HEADER],
        **body_of(TokenRequest, {"name": "shop", "scopes": ["submit", "status"], "queues": ["mail"]}),
    },
)
async def create_token(request: Request, caller: Operator) -> Response:
    """The answer shows the token; nothing shows it again. It allows nothing that the caller's own does not, and ends
    with it.

    Rate and end are the caller's own where they are left out. With an Idempotency-Key it can be repeated, and gives the
    same token. Without one, and without an answer, look for it in the list and revoke it.
    """
    check_unrestricted(caller, _WHAT)
    parts = await runtime(request)
    wanted = await read_model(request, TokenRequest)
    token = await _token_for(request, parts)
    made = await parts.database.arun(
        parts.database.store.create_token(
            token.id,
            wanted.name,
            token.hash(),
            scopes=sorted(set(wanted.scopes)),
            queues=wanted.queues,
            kinds=wanted.kinds,
            rate=wanted.rate,
            expires_at=wanted.expires_at,
            namespace=wanted.namespace,
            created_by=caller.token,
        )
    )
    body = TokenMade(
        id=token.id, token=token.reveal(), namespace=made.namespace, rate=made.rate, expires_at=made.expires_at
    )
    headers = {"cache-control": "no-store"}
    return Response(body.model_dump_json(by_alias=True), 201, headers, media_type="application/json")


async def _token_for(request: Request, parts: Runtime) -> TokenText:
    """A new token; or, with an idempotency key, the one that the caller's key stands for."""
    key, maker = header_key(request), token_of(header(request.scope, b"authorization"))
    if key is not None and maker is not None:
        return derived_token(maker, key)
    return make_token(UUID((await parts.database.anew_ids(1))[0]))


@router.delete(
    "/tokens/{tokenId}",
    operation_id="revokeToken",
    summary="Revoke a token",
    status_code=204,
    response_class=Response,
    responses=responses("not-found"),
)
async def revoke_token(request: Request, caller: Operator, token_id: TokenId) -> Response:
    """It is good for nothing any more, within seconds, nor is any token that it made. Again changes nothing."""
    check_unrestricted(caller, _WHAT)
    parts = await runtime(request)
    if not await parts.database.arun(parts.database.store.revoke_token(uuid_of(token_id, "token"))):
        raise Problem("not-found", "no such token")
    parts.gate.forget(uuid_of(token_id, "token"))
    return Response(status_code=204)
