"""The watcher: stops the server when its last user is gone, however that user died.

Run by its path in an interpreter of its own (`python -I -S _watcher.py FOLDER`), so only the standard
library may be imported; the rest of the package shares the functions.

Four files are locked with flock, which the kernel releases with the last descriptor, SIGKILL included:

    transition.lock   exclusive: whoever starts, joins or stops the server, while doing so
    hold.lock         shared: every user, for as long as it uses the server
    server.lock       exclusive: the postmaster and all its children, who inherit it; free = no server
    watcher.lock      exclusive: the watcher

Holds are taken, and the end of the last one is acted upon, under the transition lock only.
"""

import fcntl
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

TRANSITION = "transition.lock"
HOLD = "hold.lock"
SERVER = "server.lock"
WATCHER = "watcher.lock"
STATE = "server.json"
DATA = "data"
PAUSE = 0.01

# Fast shutdown, immediate shutdown, and then the hard way; each with the seconds it gets.
_STOPPING = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 8.0), (signal.SIGKILL, 5.0))


def open_lock(path: Path) -> int:
    """Open a lock file; children that execute something else do not inherit it."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def try_lock(descriptor: int, kind: int) -> bool:
    """Lock it now, or not."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_within(descriptor: int, kind: int, seconds: float) -> bool:
    """Lock it as soon as it is free, if that is soon enough."""
    deadline = time.monotonic() + seconds
    while not try_lock(descriptor, kind):
        if time.monotonic() > deadline:
            return False
        time.sleep(PAUSE)
    return True


def is_locked(path: Path) -> bool:
    """Whether some process has it exclusively."""
    descriptor = open_lock(path)
    try:
        return not try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def is_alone(hold: int) -> bool:
    """Under the transition lock: whether nobody has a hold. If so, `hold` is now exclusive."""
    if try_lock(hold, fcntl.LOCK_EX):
        return True
    # Either others share it, or the watcher has it for the moment in which it wakes up. It does so once
    # and then waits for the transition lock, so after that moment the answer is sure.
    return lock_within(hold, fcntl.LOCK_SH, 1.0) and try_lock(hold, fcntl.LOCK_EX)


def is_current(descriptor: int, path: Path) -> bool:
    """Whether the path still is that file, and not one of a folder that was removed and made anew."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def read_state(folder: Path) -> dict[str, Any]:
    """What the server was started with; empty if nothing is recorded."""
    try:
        state = json.loads((folder / STATE).read_text())
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def postmaster(data: Path) -> tuple[int, str] | None:
    """The pid and status (`starting`, `ready`, `stopping`) of the running postmaster."""
    try:
        lines = (data / "postmaster.pid").read_text(errors="replace").splitlines()
        pid = int(lines[0])
    except (OSError, ValueError, IndexError):
        return None
    # After a crash the number may belong to anybody, even to a process of the same user.
    if not _is_server(pid, data):
        return None
    return pid, lines[7].strip() if len(lines) > 7 else "starting"


def processes(data: Path) -> list[int]:
    """Every process of a server on this data folder: children may outlive a killed postmaster."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in numbers if _is_server(pid, data)]


def _is_server(pid: int, data: Path) -> bool:
    # All processes of PostgreSQL work in the data folder. A zombie has no folder any more.
    process = Path("/proc") / str(pid)
    try:
        return process.joinpath("comm").read_text().startswith("postgres") and process.joinpath("cwd").samefile(data)
    except OSError:
        return False


def stop_server(folder: Path) -> bool:
    """Under the transition lock: stop the server, if there is one, and leave nothing stale."""
    for number, seconds in _STOPPING:
        if _signal_until_gone(folder, number, seconds):
            _tidy(folder)
            return True
    return False


def _signal_until_gone(folder: Path, number: signal.Signals, seconds: float) -> bool:
    data = folder / DATA
    told: set[int] = set()
    deadline = time.monotonic() + seconds
    while is_locked(folder / SERVER):
        if time.monotonic() > deadline:
            return False
        master = postmaster(data)
        # Its children take no orders but the postmaster's, unless that is dead or all has been tried.
        targets = [master[0]] if master and number != signal.SIGKILL else processes(data)
        for pid in set(targets) - told:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            told.add(pid)
        time.sleep(PAUSE)
    return True


def _tidy(folder: Path) -> None:
    socket_folder = read_state(folder).get("socket_folder")
    if socket_folder:
        clear_sockets(Path(socket_folder))
        with suppress(OSError):
            Path(socket_folder).rmdir()
    (folder / STATE).unlink(missing_ok=True)


def clear_sockets(socket_folder: Path) -> None:
    """Remove the sockets, and their lock files with a pid, of a server that was killed."""
    with suppress(OSError):
        for entry in list(socket_folder.iterdir()):
            if entry.name.startswith(".s.PGSQL."):
                entry.unlink()


def watch(folder: Path) -> None:
    """Wait until nobody has a hold, then stop the server."""
    watcher, transition, hold = (open_lock(folder / name) for name in (WATCHER, TRANSITION, HOLD))
    # Not at once: those who look whether it is locked have it for a moment.
    if not lock_within(watcher, fcntl.LOCK_EX, 2.0):
        return
    while True:
        fcntl.flock(hold, fcntl.LOCK_EX)
        # A user may be on its way in with the transition lock, waiting for the hold: let it.
        fcntl.flock(hold, fcntl.LOCK_UN)
        fcntl.flock(transition, fcntl.LOCK_EX)
        if try_lock(hold, fcntl.LOCK_EX):
            # The server of a folder that was removed sees that itself, within a minute.
            if is_current(hold, folder / HOLD):
                stop_server(folder)
            # In this order: who has the transition lock must not take a leaving watcher for a staying one.
            os.close(watcher)
            os.close(hold)
            os.close(transition)
            return
        fcntl.flock(transition, fcntl.LOCK_UN)


def main(folder: Path) -> None:
    """Detach from the terminal and from whoever started it, then watch."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    watch(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
