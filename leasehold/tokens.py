"""The text of an API token: `lh_`, its id, `_`, its secret. Pure; what a token allows is kept in the database.

The secret has 256 random bits, so a plain SHA-256 of it is as hard to turn back as the secret is to guess.
"""

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

PREFIX: Final = "lh"
"""What every token begins with: scanners of published code look for such marks."""

SCOPES: Final = ("submit", "status", "read", "operate")
"""What a token may allow: record jobs, and cancel its namespace's own; see the status of these; read all
jobs and workers; see what jobs carry, and change what happens to them."""

SEPARATOR: Final = "\x1f"
"""Around the namespace in a stored idempotency key. No client's key may begin with it."""


def stored_key(namespace: str, key: str) -> str:
    """Return a key of a namespace as it is stored, apart from equal keys of others."""
    return f"{SEPARATOR}{namespace}{SEPARATOR}{key}"


def shown_key(key: str | None) -> str | None:
    """Return a stored key as its client gave it."""
    return key.split(SEPARATOR, 2)[-1] if key is not None and key.startswith(SEPARATOR) else key


_SHAPE: Final = re.compile(r"lh_([A-Za-z0-9_-]{22})_([A-Za-z0-9_-]{43})", re.ASCII)


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token as its holder has it. Neither its repr nor its str shows the secret."""

    id: UUID
    secret: bytes = field(repr=False)

    def reveal(self) -> str:
        """Return the text to hand out, once."""
        return f"{PREFIX}_{_text(self.id.bytes)}_{_text(self.secret)}"

    def hash(self) -> bytes:
        """Return what is kept of the secret."""
        return hashlib.sha256(self.secret).digest()

    def fits(self, secret_hash: bytes) -> bool:
        """Return whether the hash is this secret's; takes as long for any other."""
        return hmac.compare_digest(self.hash(), secret_hash)


def make_token(id: UUID) -> TokenText:  # noqa: A002 (the SQL argument's name)
    """Return a token with a new secret."""
    return TokenText(id, secrets.token_bytes(32))


def derived_token(maker: TokenText, key: str) -> TokenText:
    """Return the token that a maker's idempotency key stands for: the same each time, known to the maker alone."""
    made = [hmac.digest(maker.secret, f"{what} {key}".encode(), "sha256") for what in ("id", "secret")]
    return TokenText(UUID(bytes=made[0][:16], version=5), made[1])


def parse_token(text: str) -> TokenText | None:
    """Read the text of a token; None if it is not one."""
    shape = _SHAPE.fullmatch(text)
    if shape is None:
        return None
    token = TokenText(UUID(bytes=_bytes(shape[1])), _bytes(shape[2]))
    # The last character of each part has bits to spare: only one spelling is the token.
    return token if hmac.compare_digest(token.reveal(), text) else None


def _text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
