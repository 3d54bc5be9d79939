"""The calls that make, read and revoke the tokens of the HTTP API."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, NamedTuple
from uuid import UUID

from leasehold.db.call import Call, Row
from leasehold.db.store.calls import Calls, columns_of


class MadeToken(NamedTuple):
    """What a new token got by default."""

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
    kinds: frozenset[str] | None  # the only queues and the only kinds it may be used for; None: all
    rate: float | None  # requests a second that it may make; None: unlimited
    expires_at: datetime | None
    live: bool  # neither revoked nor expired when the database was asked
    namespace: str | None  # whose jobs are its own; None: from before there were namespaces
    session: bool  # a browser's, for the dashboard only


@dataclass(frozen=True, slots=True)
class TokenView:
    """A token as people see it: everything but the hash."""

    id: UUID
    name: str
    scopes: list[str]
    queues: list[str] | None
    kinds: list[str] | None
    rate: float | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    live: bool
    namespace: Annotated[str | None, "Whose jobs are its own; null: from before there were namespaces."]
    created_by: Annotated[UUID | None, "The token that made it; null: a person with a database login."]
    session: bool


class TokenCalls(Calls):
    """Administer who may use the HTTP API."""

    def create_token(
        self,
        id: UUID,  # noqa: A002 (the SQL argument's name)
        name: str,
        secret_hash: bytes,
        *,
        scopes: Sequence[str],
        queues: list[str] | None = None,
        kinds: list[str] | None = None,
        rate: float | None = None,
        expires_at: datetime | None = None,
        namespace: str | None = None,
        created_by: UUID | None = None,
        session: bool = False,
    ) -> Call[MadeToken]:
        """Create a token. None for queues or kinds: all of them; for the namespace: the name."""
        args = (id, name, secret_hash, list(scopes), queues, kinds, rate, expires_at)
        columns = "made_namespace, made_rate, made_expires_at"
        return self._row(MadeToken, "create_token_v1", *args, namespace, created_by, session, columns=columns)

    def token(self, id: UUID) -> Call[StoredToken | None]:  # noqa: A002 (the SQL argument's name)
        """What an API server has to know of a token; None if there is none."""
        return self._ask("token_v1", id, columns=columns_of(StoredToken), read=_stored)

    def revoke_token(self, id: UUID) -> Call[bool]:  # noqa: A002 (the SQL argument's name)
        """Revoke a token and those that it made; False: there is no such token."""
        return self._ask("revoke_token_v1", id)

    def tokens_exist(self) -> Call[bool]:
        """Whether any token is live."""
        return self._ask("tokens_exist_v1")

    def tokens(self, count: int = 1000, after: UUID | None = None, *, sessions: bool = False) -> Call[list[TokenView]]:
        """The latest tokens, revoked and expired ones included; those behind `after`, the last one of a page."""
        return self._list(TokenView, "token_list_v1", after, count, sessions)


def _stored(rows: Sequence[Row]) -> StoredToken | None:
    if not rows:
        return None
    id, name, secret_hash, scopes, queues, kinds, *rest = rows[0]  # noqa: A001
    return StoredToken(id, name, bytes(secret_hash), frozenset(scopes), _set(queues), _set(kinds), *rest)


def _set(names: Sequence[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)
