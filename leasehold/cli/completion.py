"""What a shell offers after TAB: names that the database knows, apps in this folder. Quick, silent, never an error."""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from leasehold.config import Settings
from leasehold.db.pool import Database
from leasehold.db.store import Names

_SECONDS = 2.0
"""Longer a person who has pressed TAB does not wait."""

_APP = re.compile(r"^(\w+)\s*(?::[^=\n]+)?=\s*(?:leasehold\.)?App\(", re.MULTILINE)
_LARGEST = 1 << 20


def kinds(incomplete: str) -> list[str]:
    """The kinds that begin so."""
    return [name for name in _names().kinds if name.startswith(incomplete)]


def queues(incomplete: str) -> list[str]:
    """The queues that begin so."""
    return [name for name in _names().queues if name.startswith(incomplete)]


def queue_list(incomplete: str) -> list[str]:
    """The queues for the last name of a list: `mail,rep`."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in queues(last)]


def among(*values: str) -> Callable[[str], list[str]]:
    """Those of fixed values that begin so."""
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]


def apps(incomplete: str) -> list[str]:
    """`module:app` for the Apps that are made in files here and in packages here. Nothing is imported."""
    return sorted(name for name in _apps(Path.cwd()) if name.startswith(incomplete))


def _apps(here: Path) -> Iterator[str]:
    for file in (*here.glob("*.py"), *here.glob("*/*.py")):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if file.stat().st_size <= _LARGEST and (found := _APP.search(file.read_text())):
                parts = file.relative_to(here).with_suffix("").parts
                module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                if all(part.isidentifier() for part in module.split(".")):
                    yield f"{module}:{found[1]}"


def _names() -> Names:
    with contextlib.suppress(Exception):
        settings = Settings.from_env()
        with _running(settings) as dsn:
            if dsn is not None:
                database = Database(dsn, schema=settings.schema, prepare=False, wait=_SECONDS)
                with contextlib.closing(database):
                    return database.run(database.store.names())
    return Names([], [])


@contextlib.contextmanager
def _running(settings: Settings) -> Iterator[str | None]:
    """The database that is set, or the embedded one if it runs: nothing is started for a name."""
    if settings.dsn is not None:
        yield settings.dsn
        return
    from leasehold.embedded import EmbeddedServer  # noqa: PLC0415 (an extra that production does not install)
    from leasehold.locate import located  # noqa: PLC0415

    if not EmbeddedServer(home=settings.home).is_running:
        yield None
        return
    with located(settings, say=lambda _: None, migrated=False) as dsn:
        yield dsn
