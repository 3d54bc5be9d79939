"""Which database a command works on."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from leasehold.cli.console import say
from leasehold.errors import ConfigError

_DATABASE = "leasehold"


@contextmanager
def resolve(dsn_option: str | None) -> Iterator[str]:
    """Yield the DSN: the option, else `LEASEHOLD_DSN`, else the development server's while it runs."""
    dsn = dsn_option or os.environ.get("LEASEHOLD_DSN")
    if dsn:
        yield dsn
        return
    if os.environ.get("LEASEHOLD_ENV") == "production":
        raise ConfigError(
            "no database is set and LEASEHOLD_ENV is 'production', where none is started for you",
            hint="set LEASEHOLD_DSN=postgresql://user:password@host:5432/database",
        )
    # Only here: it comes with an extra that production does not install.
    from leasehold.embedded import EmbeddedServer  # noqa: PLC0415

    home = Path(os.environ.get("LEASEHOLD_HOME", ".leasehold"))
    say(f"using the embedded PostgreSQL in {home} (set LEASEHOLD_DSN to use another)")
    with EmbeddedServer(home=home) as server:
        server.ensure_database(_DATABASE)
        yield server.dsn(_DATABASE)
