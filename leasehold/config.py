"""Settings that come from the environment, read in one place."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from leasehold.errors import ConfigError

DEFAULT_SCHEMA = "leasehold"

_WITH_DRIVER = re.compile(r"postgres(ql)?\+[a-z0-9_]+")
# 40 characters leave room for names made from it within PostgreSQL's 63 bytes.
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_PREPARE = dict.fromkeys(("", "on", "1", "true", "yes"), True) | dict.fromkeys(("off", "0", "false", "no"), False)


def checked_schema(name: str) -> str:
    """Return the schema's name, if it can be one of ours."""
    if not _SCHEMA.fullmatch(name):
        raise ConfigError(
            f"schema name {name!r} is not valid",
            hint="use 1 to 40 lower-case letters, digits and underscores, not starting with a digit",
        )
    if name.startswith("pg_") or name in {"public", "information_schema"}:
        raise ConfigError(
            f"schema name {name!r} belongs to PostgreSQL",
            hint=f"give Leasehold a schema of its own, such as {DEFAULT_SCHEMA!r}",
        )
    return name


def plain_dsn(dsn: str) -> str:
    """Return the DSN as libpq reads it: without the driver that SQLAlchemy has in it, as in `postgresql+asyncpg://`."""
    scheme, mark, rest = dsn.partition("://")
    if not mark or not _WITH_DRIVER.fullmatch(scheme):
        return dsn
    place, question, query = rest.partition("?")
    # asyncpg has the same values by another name.
    options = [f"sslmode={part[4:]}" if part.startswith("ssl=") else part for part in query.split("&")]
    return f"postgresql://{place}{question}{'&'.join(options)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where the database is and how to speak to it."""

    dsn: str | None = field(default=None, repr=False)
    """A libpq URI or key=value string (`LEASEHOLD_DSN`); never shown. None: the embedded PostgreSQL."""
    schema: str = DEFAULT_SCHEMA
    """The PostgreSQL schema that holds everything (`LEASEHOLD_SCHEMA`)."""
    home: Path = field(default_factory=lambda: Path(".leasehold"))
    """Where the embedded PostgreSQL keeps its data (`LEASEHOLD_HOME`)."""
    production: bool = False
    """Never start an embedded server (`LEASEHOLD_ENV=production`)."""
    prepare: bool = True
    """Use prepared statements (`LEASEHOLD_PREPARE=off` behind PgBouncer in transaction mode)."""

    def __post_init__(self) -> None:
        checked_schema(self.schema)
        if self.dsn is not None:
            object.__setattr__(self, "dsn", plain_dsn(self.dsn))

    @classmethod
    def from_env(cls, *, dsn: str | None = None, schema: str | None = None) -> "Settings":
        """Return the environment's settings; what is given here wins."""
        env = os.environ
        prepare = (env.get("LEASEHOLD_PREPARE") or "on").strip().lower()
        if prepare not in _PREPARE:
            raise ConfigError(f"LEASEHOLD_PREPARE={prepare!r} is neither on nor off", hint="use on or off")
        return cls(
            dsn=dsn or env.get("LEASEHOLD_DSN") or None,
            schema=schema or env.get("LEASEHOLD_SCHEMA") or DEFAULT_SCHEMA,
            home=Path(env.get("LEASEHOLD_HOME") or ".leasehold"),
            production=(env.get("LEASEHOLD_ENV") or "").strip().lower() == "production",
            prepare=_PREPARE[prepare],
        )
