"""The calls that make, look up and revoke the tokens of the HTTP API."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from leasehold.db.call import Call, Row
from leasehold.db.store.calls import Calls, scalar

_TEXTS = {
    "create_token": "select made_namespace, made_rate, made_expires_at from {}.create_token_v2("
    "%s, %s, %s, %s::text[], %s::text[], %s::text[], %s, %s, %s, %s, %s)",
    "token": "select id, name, secret_hash, scopes, queues, kinds, rate, expires_at, live, namespace, session"
    " from {}.token_v2(%s)",
    "revoke_token": "select {}.revoke_token_v1(%s)",
    "tokens_exist": "select {}.tokens_exist_v1()",
    "tokens": "select id, name, scopes, queues, kinds, rate, created_at, expires_at, revoked_at, live, namespace,"
    " created_by, session from {}.token_list_v1(%s, %s, %s)",
}


class MadeToken(NamedTuple):
    """What a new token got where nothing was said."""

    namespace: str | None
    rate: float | None
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class StoredToken:
    """What an API server has to know of a token."""

    id: UUID
    name: str
    secret_hash: bytes = field(repr=False)
    scopes: frozenset[str]
    queues: frozenset[str] | None
    """The only queues it is good for; None: all."""
    kinds: frozenset[str] | None
    """The only kinds it is good for; None: all."""
    rate: float | None
    """How many requests a second it may make; None: as many as come."""
    expires_at: datetime | None
    live: bool
    """Neither revoked nor expired when the database was asked."""
    namespace: str | None
    """Whose jobs are its own; None: from before there were namespaces."""
    session: bool
    """A browser's, for the dashboard only."""


@dataclass(frozen=True, slots=True)
class TokenView:
    """A token as people see it: everything but the hash."""

    id: UUID
    name: str
    scopes: tuple[str, ...]
    queues: tuple[str, ...] | None
    kinds: tuple[str, ...] | None
    rate: float | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    live: bool
    namespace: str | None
    created_by: UUID | None
    session: bool


class TokenCalls(Calls):
    """Say who may use the HTTP API."""

    texts = _TEXTS

    def create_token(
        self,
        id: UUID,  # noqa: A002 (the SQL argument's name)
        name: str,
        secret_hash: bytes,
        *,
        scopes: Sequence[str],
        queues: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        rate: float | None = None,
        expires_at: datetime | None = None,
        namespace: str | None = None,
        created_by: UUID | None = None,
        session: bool = False,
    ) -> Call[MadeToken]:
        """Make a token known. None for queues or kinds: all of them; for the namespace: the name."""
        args = (id, name, secret_hash, list(scopes), _listed(queues), _listed(kinds), rate, expires_at)
        more = (namespace, created_by, session)
        return Call(self._sql["create_token"], args + more, lambda rows: MadeToken(*rows[0]), repeatable=True)

    def token(self, id: UUID) -> Call[StoredToken | None]:  # noqa: A002 (the SQL argument's name)
        """What an API server has to know of a token; None if there is none."""
        return Call(self._sql["token"], (id,), _stored, repeatable=True)

    def revoke_token(self, id: UUID) -> Call[bool]:  # noqa: A002 (the SQL argument's name)
        """Let a token be good for nothing any more; False: there is no such token."""
        return Call(self._sql["revoke_token"], (id,), scalar, repeatable=True)

    def tokens_exist(self) -> Call[bool]:
        """Whether any token is live."""
        return Call(self._sql["tokens_exist"], (), scalar, repeatable=True)

    def tokens(self, count: int = 1000, after: UUID | None = None, *, sessions: bool = False) -> Call[list[TokenView]]:
        """The latest tokens, revoked and expired ones included; those behind `after`, the last one of a page."""
        args = (after, count, sessions)
        return Call(self._sql["tokens"], args, lambda rows: [_view(row) for row in rows], repeatable=True)


def _listed(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)


def _stored(rows: Sequence[Row]) -> StoredToken | None:
    if not rows:
        return None
    id, name, secret_hash, scopes, queues, kinds, rate, expires_at, live, namespace, session = rows[0]  # noqa: A001
    return StoredToken(
        id=id,
        name=name,
        secret_hash=bytes(secret_hash),
        scopes=frozenset(scopes),
        queues=None if queues is None else frozenset(queues),
        kinds=None if kinds is None else frozenset(kinds),
        rate=rate,
        expires_at=expires_at,
        live=live,
        namespace=namespace,
        session=session,
    )


def _view(row: Row) -> TokenView:
    id, name, scopes, queues, kinds, *rest = row  # noqa: A001
    return TokenView(
        id,
        name,
        tuple(scopes),
        None if queues is None else tuple(queues),
        None if kinds is None else tuple(kinds),
        *rest,
    )
