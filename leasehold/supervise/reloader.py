"""Notices that the developer has saved a file. Looks at times and sizes: nothing to install, any file system."""

import asyncio
import importlib.util
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

PAUSE = 0.5
"""Seconds between two looks."""

_SETTLE = 0.1
"""Seconds without another change before one counts: editors and version control write several files."""

_IGNORED = {"node_modules", "__pycache__"}

_Stamp = dict[str, tuple[int, int]]


class Watcher:
    """The .py files under some folders."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = roots
        # Taken before anything is imported: what is saved while a worker starts is a change.
        self._seen = self._scan()

    async def changes(self) -> AsyncIterator[list[str]]:
        """Yield the changed files, every time that there are any."""
        while True:
            await asyncio.sleep(PAUSE)
            now = await asyncio.to_thread(self._scan)
            if now == self._seen:
                continue
            while True:
                await asyncio.sleep(_SETTLE)
                then, now = now, await asyncio.to_thread(self._scan)
                if then == now:
                    break
            changed = sorted(path for path, _ in self._seen.items() ^ now.items())
            self._seen = now
            if changed:
                yield list(dict.fromkeys(changed))

    def _scan(self) -> _Stamp:
        return {path: stamp for root in self._roots for path, stamp in _files(root)}


def _files(root: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    folders = [str(root)]
    while folders:
        try:
            with os.scandir(folders.pop()) as found:
                entries = [entry for entry in found if not (entry.name.startswith(".") or entry.name in _IGNORED)]
            if any(entry.name == "pyvenv.cfg" for entry in entries):
                continue  # a virtual environment, whatever its name
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.name.endswith(".py"):
                    stat = entry.stat()
                    yield entry.path, (stat.st_mtime_ns, stat.st_size)
        except OSError:
            continue  # gone between two looks, or not ours to read


def roots_of(app: str) -> list[Path]:
    """Where the sources of `module:app` are: here, and where its package is, if that is elsewhere."""
    here = Path.cwd()
    roots = [here]
    if str(here) not in sys.path:
        sys.path.insert(0, str(here))
    package = app.partition(":")[0].partition(".")[0]
    try:
        spec = importlib.util.find_spec(package)  # of a top-level name: finds it, does not run it
    except (ImportError, ValueError):
        spec = None
    for place in (spec and spec.submodule_search_locations) or ():
        folder = Path(place).resolve()
        if not folder.is_relative_to(here.resolve()):
            roots.append(folder)
    return roots
