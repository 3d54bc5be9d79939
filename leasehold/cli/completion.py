"""What a shell offers after TAB: names in the database, apps in this folder. Quick, silent, never an error."""

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

from leasehold._locate import located
from leasehold.config import Settings
from leasehold.db.database import Database
from leasehold.db.store import Names

_APP = re.compile(r"^(\w+)\s*(?::[^=\n]+)?=\s*(?:leasehold\.)?App\(", re.MULTILINE)


def kinds(incomplete: str) -> list[str]:
    """Return the kinds that begin so."""
    return [name for name in _names().kinds if name.startswith(incomplete)]


def queues(incomplete: str) -> list[str]:
    """Return the queues that begin so."""
    return [name for name in _names().queues if name.startswith(incomplete)]


def queue_list(incomplete: str) -> list[str]:
    """Return the queues for the last name of a list: `mail,rep`."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in queues(last)]


def among(*values: str) -> Callable[[str], list[str]]:
    """Return those of fixed values that begin so."""
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]


def apps(incomplete: str) -> list[str]:
    """Return `module:app` for the Apps that are made in files here and in packages here. Nothing is imported."""
    here, found = Path.cwd(), []
    for file in (*here.glob("*.py"), *here.glob("*/*.py")):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if file.stat().st_size <= 1 << 20 and (match := _APP.search(file.read_text())):
                parts = file.relative_to(here).with_suffix("").parts
                module = parts[:-1] if parts[-1] == "__init__" else parts
                if module and all(part.isidentifier() for part in module):
                    found.append(f"{'.'.join(module)}:{match[1]}")
    return sorted(among(*found)(incomplete))


def _names() -> Names:
    with contextlib.suppress(Exception):
        from leasehold.embedded import EmbeddedServer  # noqa: PLC0415 (an extra that production does not install)

        settings = Settings.from_env()
        # The embedded server is not started for a name.
        if settings.dsn is not None or EmbeddedServer(home=settings.home).is_running:
            with located(settings, say=lambda _: None, migrated=False) as dsn:
                database = Database(dsn, schema=settings.schema, prepare=False, wait=2.0)  # TAB was pressed
                with contextlib.closing(database):
                    return database.run(database.store.names())
    return Names([], [])
