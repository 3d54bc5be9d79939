"""Tokens of the HTTP API: list, create, revoke. For callers without restrictions."""

from typing import Any, Final
from uuid import UUID

from leasehold.db.store import MadeToken, TokenView
from leasehold.operate.operator import Operator
from leasehold.operate.refusals import unknown
from leasehold.tokens import TokenText

WHAT: Final = "what concerns tokens"


async def listed(op: Operator, limit: int = 1000, after: UUID | None = None) -> list[TokenView]:
    """Return the tokens without their secrets, the latest first; browsers' sessions are left out."""
    op.caller.check_unrestricted(WHAT)
    return await op.ask(op.store.tokens(limit, after))


async def create(op: Operator, /, token: TokenText, name: str, **options: Any) -> MadeToken:
    """Record a new token, with the options of the call. It allows nothing that the caller's own does not."""
    op.caller.check_unrestricted(WHAT)
    return await op.ask(op.store.create_token(token.id, name, token.hash(), created_by=op.caller.token, **options))


async def revoke(op: Operator, token: UUID) -> None:
    """Make a token useless, and every token that it made."""
    op.caller.check_unrestricted(WHAT)
    if not await op.ask(op.store.revoke_token(token)):
        raise unknown("token")
