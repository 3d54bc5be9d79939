"""The processes of the server: locks, start, stop, and the watcher that stops it when its last user is gone.

Also run by its path in an interpreter of its own (`python -I -S _processes.py watch FOLDER` and `… launch SPEC`), so
only the standard library may be imported. An extra process, because a program with threads can neither fork nor change
its user safely.

Four files are locked with flock, which the kernel releases with the last descriptor, SIGKILL included:

    transition.lock   exclusive: the process that starts, joins or stops the server, while doing so
    hold.lock         shared: every user, for as long as it uses the server
    server.lock       exclusive: the postmaster and all its children, which inherit it; free = no server
    watcher.lock      exclusive: the watcher

Holds are taken, and the end of the last one is acted upon, under the transition lock only.
"""

import ctypes
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable
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
FAILED = 77
"""The exit code of `launch` if the program cannot be executed."""

# Fast shutdown, immediate shutdown, and then the hard way; each with the seconds it gets.
_STOPPING = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 8.0), (signal.SIGKILL, 5.0))

PR_SET_KEEPCAPS = 8
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CAPABILITY_VERSION_3 = 0x20080522
CAP_DAC_OVERRIDE = 1
CAP_DAC_READ_SEARCH = 2


def open_lock(path: str | Path) -> int:
    """Open a lock file; children that execute another program do not inherit it."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def try_lock(descriptor: int, kind: int) -> bool:
    """Lock it now, or return False."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Wait so long at most; return whether the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(PAUSE)
    return True


def lock_within(descriptor: int, kind: int, seconds: float) -> bool:
    """Lock it as soon as it is free, or return False after these seconds."""
    return within(seconds, lambda: try_lock(descriptor, kind))


def is_locked(path: Path) -> bool:
    """Return whether a process has it exclusively. Takes it shared for a moment."""
    descriptor = open_lock(path)
    try:
        return not try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def is_alone(hold: int) -> bool:
    """Return whether there is no other hold; then `hold` is now exclusive. Call it under the transition lock."""
    if try_lock(hold, fcntl.LOCK_EX):
        return True
    # Either others share it, or the watcher has it for the moment in which it wakes up. It does so once
    # and then waits for the transition lock, so after that moment the answer is sure.
    return lock_within(hold, fcntl.LOCK_SH, 1.0) and try_lock(hold, fcntl.LOCK_EX)


def is_current(descriptor: int, path: Path) -> bool:
    """Return whether the path still is that file, and not one of a folder that was removed and made anew."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def read_state(folder: Path) -> dict[str, Any]:
    """Return what the server was started with; empty if nothing is recorded."""
    with suppress(OSError, ValueError):
        state = json.loads((folder / STATE).read_text())
        return state if isinstance(state, dict) else {}
    return {}


def postmaster(data: Path) -> tuple[int, str] | None:
    """Return the pid and status (`starting`, `ready`, `stopping`) of the running postmaster."""
    try:
        lines = (data / "postmaster.pid").read_text(errors="replace").splitlines()
        pid = int(lines[0])
    except (OSError, ValueError, IndexError):
        return None
    # After a crash another process may have this number, even one of the same user.
    if not _is_server(pid, data):
        return None
    return pid, lines[7].strip() if len(lines) > 7 else "starting"


def processes(data: Path) -> list[int]:
    """Return every process of a server on this data folder: children may outlive a killed postmaster."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in numbers if _is_server(pid, data)]


def _is_server(pid: int, data: Path) -> bool:
    # All processes of PostgreSQL work in the data folder. A zombie has no folder any more.
    process = Path("/proc") / str(pid)
    with suppress(OSError):
        return process.joinpath("comm").read_text().startswith("postgres") and process.joinpath("cwd").samefile(data)
    return False


def stop_server(folder: Path) -> bool:
    """Stop the server, if there is one, and remove its sockets and its state. Call it under the transition lock."""
    for number, seconds in _STOPPING:
        if _signal_until_gone(folder, number, seconds):
            if socket_folder := read_state(folder).get("socket_folder"):
                clear_sockets(Path(socket_folder))
                with suppress(OSError):
                    Path(socket_folder).rmdir()
            (folder / STATE).unlink(missing_ok=True)
            return True
    return False


def _signal_until_gone(folder: Path, number: signal.Signals, seconds: float) -> bool:
    data = folder / DATA
    signalled: set[int] = set()
    deadline = time.monotonic() + seconds
    while is_locked(folder / SERVER):
        if time.monotonic() > deadline:
            return False
        master = postmaster(data)
        # The postmaster signals its children, unless it is dead or all has been tried.
        targets = [master[0]] if master and number != signal.SIGKILL else processes(data)
        for pid in set(targets) - signalled:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            signalled.add(pid)
        time.sleep(PAUSE)
    return True


def clear_sockets(socket_folder: Path) -> None:
    """Remove the sockets, and their lock files with a pid, of a server that was killed."""
    with suppress(OSError):
        for entry in list(socket_folder.iterdir()):
            if entry.name.startswith(".s.PGSQL."):
                entry.unlink()


def watch(folder: Path) -> None:
    """Detach, wait until there is no hold, then stop the server."""
    _detach()
    watcher, transition, hold = (open_lock(folder / name) for name in (WATCHER, TRANSITION, HOLD))
    # Not at once: `is_locked` of another process has it for a moment.
    if not lock_within(watcher, fcntl.LOCK_EX, 2.0):
        return
    while True:
        fcntl.flock(hold, fcntl.LOCK_EX)
        # A user may have the transition lock and wait for the hold: let it.
        fcntl.flock(hold, fcntl.LOCK_UN)
        fcntl.flock(transition, fcntl.LOCK_EX)
        if try_lock(hold, fcntl.LOCK_EX):
            # The server of a folder that was removed sees that itself, within a minute.
            if is_current(hold, folder / HOLD):
                stop_server(folder)
            # In this order: the next owner of the transition lock must not take a leaving watcher for a staying one.
            for descriptor in (watcher, hold, transition):
                os.close(descriptor)
            return
        fcntl.flock(transition, fcntl.LOCK_UN)


def launch(spec: dict[str, Any]) -> None:
    """Lock, detach and change the user as the spec says, and execute its command.

    PostgreSQL refuses uid 0 but nothing else. So where the unprivileged user cannot enter a parent folder (a home below
    /root), the process keeps the one capability that it needs there, and the permissions of the folders stay as they
    are.
    """
    capability = _capability_needed(spec) if spec["uid"] is not None else None
    if spec["lock"]:
        # For the life of the program and of all its children, which inherit the descriptor.
        descriptor = open_lock(spec["lock"])
        if not lock_within(descriptor, fcntl.LOCK_EX, 2.0):  # not at once: as above
            sys.stderr.write(f"{spec['lock']} is locked: a server is running already")
            sys.exit(FAILED)
        os.set_inheritable(descriptor, True)
        _detach()
        # From here on errors belong in the log, which is stdout.
        os.dup2(1, 2)
        # This process had the transition lock so that no other transition begins before the server has its lock.
        os.set_inheritable(spec["carry"], False)
    if spec["uid"] is not None:
        _become(spec["uid"], spec["gid"], capability)
    os.execv(spec["command"][0], spec["command"])  # noqa: S606


def _detach() -> None:
    """Go on in a child that has neither this terminal nor this working folder."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")


def _become(uid: int, gid: int, capability: int | None) -> None:
    """Change the user irrevocably and keep no capability, or just this one, across the next exec."""
    libc = ctypes.CDLL(None, use_errno=True)

    def checked(result: int) -> None:
        if result:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    if capability is not None:
        checked(libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0))
    os.setgroups([gid])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if capability is not None:
        bit = 1 << capability
        header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
        # Effective, permitted, inheritable; the second three are the capabilities above 31.
        checked(libc.capset(header, (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)))
        checked(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0))


def _capability_needed(spec: dict[str, Any]) -> int | None:
    """Return the least privilege with which the program and its folders can be reached."""
    reasons = []
    for capability in (None, CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE):
        reason = _obstacle(spec, capability)
        if not reason:
            return capability
        reasons.append(reason)
    sys.stderr.write(reasons[0])
    sys.exit(FAILED)


def _obstacle(spec: dict[str, Any], capability: int | None) -> str:
    """Try it in a child: why the program cannot run so, or an empty string."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _become(spec["uid"], spec["gid"], capability)
            for folder in spec["reach"]:
                os.chdir(folder)
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 1)
            os.dup2(null, 2)
            os.execv(spec["command"][0], [spec["command"][0], "--version"])  # noqa: S606
        except OSError as error:
            os.write(writer, str(error).encode(errors="replace"))
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        reason = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return "" if status == 0 else reason or f"{spec['command'][0]} ended with {status}"


if __name__ == "__main__":
    launch(json.loads(sys.argv[2])) if sys.argv[1] == "launch" else watch(Path(sys.argv[2]))
