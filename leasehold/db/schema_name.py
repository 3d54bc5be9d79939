"""The name of the schema that holds everything Leasehold has in a database."""

import re

from leasehold.errors import ConfigError

DEFAULT_SCHEMA = "leasehold"

# 40 characters leave room for names made from it (channels, roles) within PostgreSQL's 63 bytes.
_VALID = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_TAKEN = frozenset({"public", "information_schema"})


def valid_schema_name(name: str) -> str:
    """Return `name` when it may be Leasehold's schema, else raise `ConfigError`."""
    if not _VALID.fullmatch(name):
        raise ConfigError(
            f"schema name {name!r} is not valid",
            hint="use 1 to 40 lower-case letters, digits and underscores, not starting with a digit",
        )
    if name in _TAKEN or name.startswith("pg_"):
        raise ConfigError(
            f"schema name {name!r} belongs to PostgreSQL",
            hint=f"give Leasehold a schema of its own, such as {DEFAULT_SCHEMA!r}",
        )
    return name
