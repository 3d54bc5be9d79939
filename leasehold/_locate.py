"""Which database a program works on: the one that is set, or the embedded one in development."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from leasehold._logger import logger_of
from leasehold.config import Settings
from leasehold.errors import ConfigError

DATABASE = "leasehold"

logger = logger_of(__name__)


@contextmanager
def located(settings: Settings, *, say: Callable[[str], None] = logger.info, migrated: bool = True) -> Iterator[str]:
    """Yield the DSN. The embedded server runs for as long as this is held, with the schema in place if `migrated`."""
    if settings.dsn:
        yield settings.dsn
        return
    if settings.production:
        raise ConfigError(
            "no database is set and LEASEHOLD_ENV is 'production', where none is started for you",
            hint="set LEASEHOLD_DSN=postgresql://user:password@host:5432/database",
        )
    # Only here: it comes with an extra that production does not install.
    from leasehold.db.migrations.migrate import migrate  # noqa: PLC0415
    from leasehold.embedded import EmbeddedServer  # noqa: PLC0415

    say(f"using the embedded PostgreSQL in {settings.home} (set LEASEHOLD_DSN to use another)")
    with EmbeddedServer(home=settings.home) as server:
        server.ensure_database(DATABASE)
        dsn = server.dsn(DATABASE)
        if migrated:
            migrate(dsn, schema=settings.schema)
        yield dsn
