"""Notices that the developer has saved a file. Compares times and sizes: nothing to install, any file system."""

import asyncio
import contextlib
import importlib.util
import os
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path


class SourceWatcher:
    """The .py files under some folders."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = roots
        # Taken before anything is imported: what is saved while a worker starts is a change.
        self._seen = self._scan()

    async def changes(self) -> AsyncIterator[list[str]]:
        """Yield the changed files, every time that there are any."""
        while True:
            await asyncio.sleep(0.5)
            before, now = self._seen, await asyncio.to_thread(self._scan)
            while now != before:  # until all is written: editors and version control write several files
                await asyncio.sleep(0.1)
                before, now = now, await asyncio.to_thread(self._scan)
            changed = sorted({path for path, _ in self._seen.items() ^ now.items()})
            self._seen = now
            if changed:
                yield changed

    def _scan(self) -> dict[str, tuple[int, int]]:
        """Return the time and the size of each file."""
        found = {}
        for folder, folders, names in (place for root in self._roots for place in os.walk(root)):
            if "pyvenv.cfg" in names:  # a virtual environment, whatever its name
                folders.clear()
                continue
            folders[:] = [name for name in folders if name[0] != "." and name not in {"node_modules", "__pycache__"}]
            for name in names:
                if name.endswith(".py") and not name.startswith("."):
                    path = os.path.join(folder, name)  # noqa: PTH118 (half of the time of a scan)
                    with contextlib.suppress(OSError):  # gone between two scans, or not readable
                        file = os.stat(path)  # noqa: PTH116
                        found[path] = (file.st_mtime_ns, file.st_size)
        return found


def roots_of(app: str) -> list[Path]:
    """Return where the sources of `module:app` are: here, and where its package is, if that is elsewhere."""
    here = Path.cwd()
    if str(here) not in sys.path:
        sys.path.insert(0, str(here))
    package = app.partition(":")[0].partition(".")[0]
    try:
        spec = importlib.util.find_spec(package)  # of a top-level name: finds it, does not run it
    except (ImportError, ValueError):
        spec = None
    folders = [Path(place).resolve() for place in (spec and spec.submodule_search_locations) or ()]
    return [here, *(folder for folder in folders if not folder.is_relative_to(here.resolve()))]
