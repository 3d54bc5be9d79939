"""Which jobs a worker is running at this moment, where it is still known after the worker was killed.

A small file for each worker, mapped into its memory: a job that starts or ends is a few bytes written there, without
a system call, and the file outlives the process. The lock on it does not: who gets it knows that the worker is dead.

Beside the journals is the list of suspects: jobs that were running when workers of this host died.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import mmap
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from leasehold.db.store import Token

logger = logging.getLogger(__name__)

VARIABLE: Final = "LEASEHOLD_RUN_DIR"

_ENTRY: Final = 48
_EMPTY: Final = bytes(_ENTRY)
_ENDING: Final = ".journal"

_ALONE_AFTER: Final = 2
"""Deaths in a row under which a job was running, after which it is run alone."""

_REMEMBERED: Final = 86_400.0
"""Seconds that a suspect is remembered: it may have ended elsewhere."""

_MOST: Final = 10_000
"""Suspects that are remembered."""


class Journal:
    """The jobs in the slots of one worker."""

    def __init__(self, path: Path, slots: int) -> None:
        self._path = path
        self._file = path.open("x+b")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._file.truncate(slots * _ENTRY)
        self._map = mmap.mmap(self._file.fileno(), slots * _ENTRY)
        self._free = [n * _ENTRY for n in range(slots)]
        self._places: dict[Token, int] = {}

    def begin(self, job: Token) -> None:
        """This job starts."""
        if self._free:
            place = self._places[job] = self._free.pop()
            self._map[place : place + 36] = job.id.encode()

    def end(self, job: Token) -> None:
        """It has ended."""
        place = self._places.pop(job, None)
        if place is not None:
            self._map[place : place + _ENTRY] = _EMPTY
            self._free.append(place)

    def close(self, *, orderly: bool) -> None:
        """The worker ends. Not in good order: another one is to look what it was running."""
        if orderly:
            with contextlib.suppress(OSError):
                self._path.unlink()
        self._map.close()
        self._file.close()


class Place:
    """Where the journals of this host's workers on one database and schema are."""

    def __init__(self, database: str, schema: str) -> None:
        parent = os.environ.get(VARIABLE) or os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        name = hashlib.sha256(f"{database}\0{schema}".encode()).hexdigest()[:16]
        self._folder = Path(parent) / f"leasehold-{os.getuid()}" / name

    def open(self, worker: str, slots: int) -> Journal | None:
        """A journal for this worker; None where no file can be written: then its death is noticed by its leases."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self._folder.parent, self._folder):
                if folder.stat().st_uid != os.getuid():
                    raise PermissionError(f"{folder} belongs to another user")
            return Journal(self._folder / f"{worker.replace('/', '_')}{_ENDING}", slots)
        except OSError as error:
            logger.info("no journal of running jobs can be kept: %s; set %s to a writable folder", error, VARIABLE)
            return None

    def deaths(self) -> Iterator[tuple[str, set[str]]]:
        """The workers that have died and left a journal, with the jobs that they were running. Each is given once."""
        for path in sorted(self._folder.glob(f"*{_ENDING}")):
            with contextlib.suppress(OSError), path.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not ours while the worker lives
                if not path.exists():
                    continue
                data = file.read()
                path.unlink()
                entries = [data[n : n + 36] for n in range(0, len(data), _ENTRY)]
                yield path.name.removesuffix(_ENDING), {e.decode("ascii", "replace") for e in entries if e.strip(b"\0")}

    # -- suspects

    def suspects(self) -> dict[str, bool]:
        """The jobs that were running when workers died, and whether they are to be run alone."""
        with self._list() as known:
            return {job: deaths >= _ALONE_AFTER for job, (deaths, _) in known.items()}

    def suspect(self, jobs: set[str]) -> None:
        """These were running when their worker died."""
        with self._list(write=True) as known:
            for job in jobs:
                known[job] = (known.get(job, (0, 0.0))[0] + 1, time.time())

    def clear(self, job: str) -> None:
        """This one has ended, and its worker lives."""
        with self._list(write=True) as known:
            known.pop(job, None)

    @contextmanager
    def _list(self, *, write: bool = False) -> Iterator[dict[str, tuple[int, float]]]:
        try:
            file = (self._folder / "suspects").open("a+", encoding="ascii")
        except OSError:
            yield {}
            return
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            known = _recent(file.read())
            yield known
            if write:
                file.truncate(0)
                file.write(json.dumps(dict(list(known.items())[-_MOST:])))


def _recent(text: str) -> dict[str, tuple[int, float]]:
    try:
        found: Mapping[str, Any] = json.loads(text or "{}")
        since = time.time() - _REMEMBERED
        return {str(job): (int(deaths), float(at)) for job, (deaths, at) in found.items() if at >= since}
    except (ValueError, TypeError, AttributeError):
        return {}
