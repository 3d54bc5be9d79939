"""Execute a program of PostgreSQL: detached, and, of root, as an unprivileged user.

Run by its path in an interpreter of its own (`python -I -S _launch.py SPEC`), so only the standard
library may be imported. An extra process, because neither forking with threads nor changing the user
can be done safely in the process of whoever uses the server.

PostgreSQL refuses uid 0 but nothing else. So where the unprivileged user cannot enter a parent folder
(a home below /root), the process keeps the one capability it takes to get there, and the permissions
of the folders stay as they are.
"""

import ctypes
import fcntl
import json
import os
import sys
import time
from typing import Any

FAILED = 77
PR_SET_KEEPCAPS = 8
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CAPABILITY_VERSION_3 = 0x20080522
CAP_DAC_OVERRIDE = 1
CAP_DAC_READ_SEARCH = 2


def become(uid: int, gid: int, capability: int | None) -> None:
    """Change to the user for good, keeping no capability or just this one across the next exec."""
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


def obstacle(spec: dict[str, Any], capability: int | None) -> str:
    """Try it in a child: why the program cannot run so, or an empty string."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            become(spec["uid"], spec["gid"], capability)
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


def capability_needed(spec: dict[str, Any]) -> int | None:
    """The least privilege with which the program and its folders can be reached."""
    reasons = []
    for capability in (None, CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE):
        reason = obstacle(spec, capability)
        if not reason:
            return capability
        reasons.append(reason)
    sys.stderr.write(reasons[0])
    sys.exit(FAILED)


def lock(path: str) -> None:
    """Lock a file for the life of the program and of all its children, who inherit the descriptor."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + 2
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Somebody who looks whether it is locked has it for a moment.
            if time.monotonic() > deadline:
                sys.stderr.write(f"{path} is locked: a server is running already")
                sys.exit(FAILED)
            time.sleep(0.01)
        else:
            os.set_inheritable(descriptor, True)
            return


def main(spec: dict[str, Any]) -> None:
    """Lock, detach, change the user, execute."""
    capability = capability_needed(spec) if spec["uid"] is not None else None
    if spec["lock"]:
        lock(spec["lock"])
    if spec["detach"]:
        if os.fork():
            os._exit(0)
        os.setsid()
        os.chdir("/")
        # From here on errors belong in the log, which is stdout.
        os.dup2(1, 2)
        # The transition lock came along so that nobody else begins one before the server has its lock.
        os.set_inheritable(spec["carry"], False)
    if spec["uid"] is not None:
        become(spec["uid"], spec["gid"], capability)
    os.execv(spec["command"][0], spec["command"])  # noqa: S606


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
