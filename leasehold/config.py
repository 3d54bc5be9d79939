"""Settings that come from the environment, read in one place."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from leasehold.errors import ConfigError

DEFAULT_SCHEMA = "leasehold"

_SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,39}")


def checked_schema(name: str) -> str:
    """The schema's name, if it can be one of ours."""
    if not _SCHEMA.fullmatch(name) or name in {"public", "information_schema"}:
        raise ConfigError(
            f"schema name {name!r} is not allowed",
            hint="lower-case letters, digits and underscores, at most 40, not pg_…, public or information_schema",
        )
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where the database is and how to speak to it."""

    dsn: str | None = None
    """A libpq URI or key=value string (`LEASEHOLD_DSN`). None: the embedded PostgreSQL."""

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

    @classmethod
    def from_env(cls, *, dsn: str | None = None, schema: str | None = None) -> "Settings":
        """The environment's settings; what is given here wins."""
        env = os.environ
        return cls(
            dsn=dsn or env.get("LEASEHOLD_DSN") or None,
            schema=schema or env.get("LEASEHOLD_SCHEMA") or DEFAULT_SCHEMA,
            home=Path(env.get("LEASEHOLD_HOME") or ".leasehold"),
            production=env.get("LEASEHOLD_ENV") == "production",
            prepare=env.get("LEASEHOLD_PREPARE", "on").lower() not in {"off", "0", "false", "no"},
        )
