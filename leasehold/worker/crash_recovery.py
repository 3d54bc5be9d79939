"""What a killed worker of this host left behind: its jobs, under leases that are not renewed.

A worker dies by SIGKILL, for want of memory, or by a task that ends the process. What it had not started is released
at once and costs nothing. So is what it was running beside other jobs: which of them killed it is not known. One that
was running when two workers in a row died is run alone from then on; if it is the killer, the next death is its own,
and costs no other job an attempt.

Which jobs a worker is running is known from its journal: a small file mapped into its memory. A job that starts or ends
is a few bytes written there, without a system call, and the file outlives the process. The lock on it does not, nor
does a fork of the worker keep it: a process that gets the lock knows that the worker is dead. Beside the journals is
a small file for each suspect, a job that was running when workers of this host died: one byte for each death.

A worker that ends itself at twice its memory limit notes its suspects by itself, and releases or fails them in order.

A job counts as running until its report is answered: what its function left in the event loop may end the worker too.
"""

import contextlib
import fcntl
import hashlib
import mmap
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from leasehold._logger import logger_of
from leasehold._os_process import not_in_forks
from leasehold.db.store import Token
from leasehold.errors import DatabaseUnavailable, LeaseholdError, LockTimeout
from leasehold.upkeep.loop import PeriodicLoop, Ports

logger = logger_of(__name__)

VARIABLE: Final = "LEASEHOLD_RUN_DIR"

_ENTRY: Final = 48
"""Bytes of an entry. One whose first byte is 0 is empty."""
_COUNTED: Final = 47
"""The byte of a journal, unused by its first entry, that is not 0 when the death of its worker was counted."""
_ENDING: Final = ".journal"
_SUSPECT: Final = ".suspect"


class Journal:
    """The jobs that one worker runs or reports. The runner itself writes the ids into `map`, for each job."""

    def __init__(self, path: Path, entries: int) -> None:
        self._path = path
        self._file = path.open("x+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            _allocate(self._file, entries * _ENTRY)
            # Holds the lock as well: a task that closes every file of the process does not release it.
            self.map = mmap.mmap(self._file.fileno(), entries * _ENTRY)
            not_in_forks(self._file)
            not_in_forks(self.map)
        except BaseException:
            self._file.close()
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        self.free = [n * _ENTRY for n in range(entries)]
        """Offsets of empty entries."""

    def count(self) -> None:
        """Note that the jobs in it are suspects already, should the worker be killed now."""
        self.map[_COUNTED] = 1

    def close(self, *, orderly: bool) -> None:
        """Close the file, and remove it if the worker ends in good order: else another worker reads it."""
        if orderly:
            with contextlib.suppress(OSError):
                self._path.unlink()
        self.map.close()
        self._file.close()


@dataclass(slots=True)
class Death:
    """A worker that has died."""

    worker: str
    running: set[str]
    cleared: bool = field(default=True, compare=False)  # set to False to keep its journal for a later scan


class JournalFolder:
    """Where the journals of this host's workers on one database and schema are."""

    def __init__(self, database: str, schema: str) -> None:
        parent = os.environ.get(VARIABLE) or os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        name = hashlib.sha256(f"{database}\0{schema}".encode()).hexdigest()[:16]
        self._folder = Path(parent) / f"leasehold-{os.getuid()}" / name

    def open(self, worker: str, entries: int) -> Journal | None:
        """Return a journal for this worker; None where no file can be written: then its leases show its death."""
        try:
            for folder in (self._folder.parent, self._folder):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                _check(folder)
            return Journal(self._folder / f"{worker.replace('/', '_')}{_ENDING}", entries)
        except (OSError, ValueError) as error:
            logger.info("no journal of running jobs can be kept: %s; set %s to a writable folder", error, VARIABLE)
            return None

    def _is_trusted(self) -> bool:
        """Return whether the folder is there and is this user's own. Nothing is read from or written to another."""
        with contextlib.suppress(OSError):
            _check(self._folder.parent)
            _check(self._folder)
            return True
        return False

    def deaths(self) -> Iterator[Death]:
        """Yield the workers that have died and left a journal. The jobs that they were running become suspects.

        A journal is removed when the next one is asked for, and locked until then: a worker that dies before it has
        cleared up leaves it to another. It contains whether the death was counted, so that one death counts once.
        """
        if not self._is_trusted():
            return
        for path in sorted(self._folder.glob(f"*{_ENDING}")):
            file = _locked(path)
            if file is not None:
                with file:
                    data = file.read()
                    entries = [data[n : n + 36].decode("ascii", "replace") for n in range(0, len(data), _ENTRY)]
                    running = {entry for entry in entries if re.fullmatch("[0-9a-f-]{36}", entry)}
                    death = Death(path.name.removesuffix(_ENDING), running)
                    if death.running and not data[_COUNTED]:  # before they are given back: the next death may be near
                        self.suspect(death.running)
                        file.seek(_COUNTED)
                        file.write(b"\1")
                        file.flush()
                    yield death
                    if death.cleared:
                        path.unlink(missing_ok=True)

    # -- suspects. What cannot be read or written is as if it were not there: no job depends on it.

    def suspects(self) -> dict[str, bool]:
        """Return the jobs that were running when workers died, and whether they are to be run alone."""
        found = {}
        since = time.time() - 86_400  # a day: it may have ended elsewhere
        for path in self._folder.glob(f"*{_SUSPECT}") if self._is_trusted() else ():
            with contextlib.suppress(OSError):
                known = path.stat()
                if known.st_mtime < since:
                    path.unlink()
                else:
                    found[path.name.removesuffix(_SUSPECT)] = known.st_size >= 2
        return found

    def suspect(self, jobs: Iterable[str]) -> None:
        """Note that these were running when their worker died. Any number of workers may do it at once."""
        for job in jobs if self._is_trusted() else ():
            with contextlib.suppress(OSError), (self._folder / f"{job}{_SUSPECT}").open("ab") as file:
                file.write(b".")

    def clear(self, job: str) -> None:
        """Remove a job that has ended while its worker lives."""
        with contextlib.suppress(OSError):
            (self._folder / f"{job}{_SUSPECT}").unlink(missing_ok=True)


def _check(folder: Path) -> None:
    """Raise PermissionError unless it is a folder of this user's own, and no link to one."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{folder} is not a folder")
    if found.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")


def _allocate(file: BinaryIO, size: int) -> None:
    """Allocate the file on the disk now: a write to mapped memory without it would end the process by SIGBUS."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.write(bytes(size))
        file.flush()


def _locked(path: Path) -> BinaryIO | None:
    """Return the journal of a dead worker, locked; None: it lives, or another worker has the journal or had it."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
        file = opened.enter_context(path.open("r+b"))
        not_in_forks(file)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not ours while the worker lives
        if path.exists():
            opened.pop_all()
            return file
    return None


class CrashRecovery(PeriodicLoop):
    """The loop that releases the jobs of dead workers of the same host, user and database."""

    _PART = "the recovery of dead workers"

    def __init__(self, ports: Ports, *, folder: JournalFolder, found: Callable[[], None]) -> None:
        """`found` is called for each dead worker: there are new suspects."""
        super().__init__(ports)
        self._folder = folder
        self._found = found

    async def round(self) -> float:
        """Scan once."""
        try:
            for death in self._folder.deaths():
                self._found()
                if not await self._clear_up(death):
                    break  # its journal stays, and is read at the next scan, here or by another worker
        except OSError as error:  # a full or broken disk is no reason to end the worker
            logger.warning("journals of dead workers cannot be read: %s", error)
        return 2.0

    async def _clear_up(self, death: Death) -> bool:
        """Release all that the worker held; but not the only one that it was running: that one has failed.

        Return False if the database is away: it has to be done later.
        """
        worker, running = death.worker, death.running
        try:
            owned = await self._link.run(self._store.owned(worker))
            free = [token for token in owned if len(running) != 1 or token.id not in running]
            given = await self._release(worker, free)
        except DatabaseUnavailable as error:
            logger.debug("worker %s died; its jobs are given back when the database is there: %s", worker, error)
            return False
        except LeaseholdError as error:
            logger.warning("worker %s died; its jobs are left to their leases: %s", worker, error)
            return True
        death.cleared = len(given) == len(free)  # else at the next scan: another session has locked the rest
        if given or (owned and death.cleared):
            # Not all in its journal are its own still: it may have reported or lost some.
            ran = sum(token.id in running for token in owned)
            failed = f"; {next(iter(running))} has failed with it" if len(running) == ran == 1 else ""
            text = "worker %s died with %d jobs in hand, %d of them running: %d given back uncounted%s"
            logger.warning(text, worker, len(owned), ran, len(given), failed)
        return True

    async def _release(self, worker: str, tokens: list[Token]) -> list[Token]:
        """Release them, and return those whose row is not locked: if one is locked, each is released alone."""
        if not tokens:
            return []
        try:
            await self._link.run(self._store.release(worker, tokens))
        except LockTimeout as error:
            if len(tokens) > 1:
                return [token for one in tokens for token in await self._release(worker, [one])]
            logger.debug("worker %s died; its job %s is released later: %s", worker, tokens[0].id, error)
            return []
        return tokens
