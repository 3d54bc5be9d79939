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
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO

from leasehold.db.store import Token

logger = logging.getLogger(__name__)

VARIABLE: Final = "LEASEHOLD_RUN_DIR"

_ENTRY: Final = 48
"""Bytes of a slot. One whose first byte is 0 is empty."""
_COUNTED: Final = 47
"""The byte of a journal, unused by its first slot, that is not 0 when the death of its worker was counted."""
_ENDING: Final = ".journal"

_ALONE_AFTER: Final = 2
"""Deaths in a row under which a job was running, after which it is run alone."""

_REMEMBERED: Final = 86_400.0
"""Seconds that a suspect is remembered: it may have ended elsewhere."""

_MOST: Final = 10_000
"""Suspects that are remembered."""


_TRIES: Final = 5
_BETWEEN_TRIES: Final = 0.01
"""Seconds between two tries to lock the list of suspects. The event loop stands still meanwhile."""

_Known = dict[str, tuple[int, float]]
"""Suspects: how many workers died while they were running, and when the last one did."""


class Journal:
    """The jobs in the slots of one worker."""

    def __init__(self, path: Path, slots: int) -> None:
        self._path = path
        self._file = path.open("x+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            _allocate(self._file, slots * _ENTRY)
            self._map = mmap.mmap(self._file.fileno(), slots * _ENTRY)
        except BaseException:
            self._file.close()
            with contextlib.suppress(OSError):
                path.unlink()
            raise
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
            self._map[place] = 0
            self._free.append(place)

    def close(self, *, orderly: bool) -> None:
        """The worker ends. Not in good order: another one is to look what it was running."""
        if orderly:
            with contextlib.suppress(OSError):
                self._path.unlink()
        self._map.close()
        self._file.close()


@dataclass(slots=True)
class Death:
    """A worker that has died."""

    worker: str
    running: set[str]
    """The jobs that it was running."""
    cleared: bool = field(default=True, compare=False)
    """Set to False to keep its journal for a later look."""


class Place:
    """Where the journals of this host's workers on one database and schema are."""

    def __init__(self, database: str, schema: str) -> None:
        parent = os.environ.get(VARIABLE) or os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        name = hashlib.sha256(f"{database}\0{schema}".encode()).hexdigest()[:16]
        self._folder = Path(parent) / f"leasehold-{os.getuid()}" / name
        self._trusted = False

    def open(self, worker: str, slots: int) -> Journal | None:
        """A journal for this worker; None where no file can be written: then its death is noticed by its leases."""
        try:
            for folder in (self._folder.parent, self._folder):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                _check(folder)
            return Journal(self._folder / f"{worker.replace('/', '_')}{_ENDING}", slots)
        except (OSError, ValueError) as error:
            logger.info("no journal of running jobs can be kept: %s; set %s to a writable folder", error, VARIABLE)
            return None

    def _is_trusted(self) -> bool:
        """Whether the folder is there and is this user's own. Nothing is read from or written to another."""
        if not self._trusted:
            try:
                _check(self._folder.parent)
                _check(self._folder)
            except OSError:
                return False
            self._trusted = True
        return True

    def deaths(self) -> Iterator[Death]:
        """The workers that have died and left a journal. The jobs that they were running are suspects from then on.

        A journal is removed when the next one is asked for, and locked until then: who dies or gives up before it has
        cleared up leaves it to another. It says itself whether the death was counted, so that one death counts once.
        """
        if not self._is_trusted():
            return
        for path in sorted(self._folder.glob(f"*{_ENDING}")):
            file = _locked(path)
            if file is not None:
                with file:
                    data = file.read()
                    entries = [data[n : n + 36] for n in range(0, len(data), _ENTRY)]
                    death = Death(
                        path.name.removesuffix(_ENDING), {e.decode("ascii", "replace") for e in entries if e[0]}
                    )
                    if death.running and not data[_COUNTED]:  # before they are given back: the next death may be near
                        self.suspect(death.running)
                        file.seek(_COUNTED)
                        file.write(b"\1")
                        file.flush()
                    yield death
                    if death.cleared:
                        path.unlink(missing_ok=True)

    # -- suspects

    def suspects(self) -> dict[str, bool]:
        """The jobs that were running when workers died, and whether they are to be run alone."""
        return {job: deaths >= _ALONE_AFTER for job, (deaths, _) in self._list().items()}

    def suspect(self, jobs: set[str]) -> None:
        """These were running when their worker died."""

        def add(known: _Known) -> None:
            for job in jobs:
                known[job] = (known.get(job, (0, 0.0))[0] + 1, time.time())

        self._list(add)

    def clear(self, job: str) -> None:
        """This one has ended, and its worker lives."""
        self._list(lambda known: known.pop(job, None))

    def _list(self, change: Callable[[_Known], object] | None = None) -> _Known:
        """The list, changed if so asked. One that cannot be read or written counts as empty: no job depends on it."""
        known: _Known = {}
        if not self._is_trusted():
            return known
        try:
            with (self._folder / "suspects").open("a+", encoding="ascii", errors="replace") as file:
                locked = _lock(file)
                file.seek(0)
                known = _recent(file.read())
                if change is not None and locked:
                    change(known)
                    file.truncate(0)
                    file.write(json.dumps(dict(list(known.items())[-_MOST:])))
        except (OSError, ValueError) as error:
            logger.debug("the list of suspects cannot be kept: %s", error)
        return known


def _check(folder: Path) -> None:
    """PermissionError unless it is a folder of this user's own, and no link to one."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{folder} is not a folder")
    if found.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")


def _allocate(file: BinaryIO, size: int) -> None:
    """Give the file its room on the disk now: a write to mapped memory without it would end the process by SIGBUS."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.write(bytes(size))
        file.flush()


def _locked(path: Path) -> BinaryIO | None:
    """The journal of a dead worker, locked; None: it lives, or another worker has the journal or had it."""
    file = None
    try:
        file = path.open("r+b")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not ours while the worker lives
        if path.exists():
            return file
    except OSError:
        pass
    if file is not None:
        file.close()
    return None


def _lock(file: TextIO) -> bool:
    """Lock the list, which others hold for an instant only; False: one of them has been stopped while it did."""
    for _ in range(_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(_BETWEEN_TRIES)
        else:
            return True
    return False


def _recent(text: str) -> _Known:
    try:
        found: Mapping[str, Any] = json.loads(text or "{}")
        since = time.time() - _REMEMBERED
        return {str(job): (int(deaths), float(at)) for job, (deaths, at) in found.items() if at >= since}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}
