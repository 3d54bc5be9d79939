"""Where a process reports how it is doing: a health file, systemd, and the pipe to its supervisor."""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leasehold._os_process import follow_parent, not_in_forks
from leasehold.errors import ConfigError

EVERY = 2.0
"""Seconds between two writes of the health file. One that is much older means that something hangs, or is gone."""
VARIABLE = "LEASEHOLD_SUPERVISOR"
"""Set in a supervised process: the supervisor's pid, the descriptor to write to, and one to read if it is held."""


class HealthFile:
    """A JSON file that is replaced as a whole, so that no reader sees half of it."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._guard = threading.Lock()
        self._removed = False
        self._draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")

    def write(self, content: Mapping[str, Any]) -> None:
        """Replace the file."""
        try:
            with self._guard:
                if not self._removed:
                    self._draft.write_text(json.dumps(content) + "\n")
                    self._draft.replace(self._path)
        except OSError as error:
            raise ConfigError(f"health file {self._path} cannot be written: {error.strerror}") from None

    def remove(self) -> None:
        """Remove the file: the workers have ended."""
        with self._guard:
            self._removed = True
            for path in (self._path, self._draft):
                path.unlink(missing_ok=True)


class Systemd:
    """The service manager, if there is one; otherwise nothing is sent."""

    def __init__(self, address: str | None = None, watchdog: float | None = None) -> None:
        # A name that starts with @ is abstract: its first byte is 0.
        self._address = "\0" + address[1:] if address and address.startswith("@") else address
        self.watchdog = watchdog
        """Seconds of silence after which systemd takes us for hung; None: it does not check."""

    @classmethod
    def take(cls) -> "Systemd":
        """Read what systemd has set, and take it out of the environment: it is not meant for our children."""
        address = os.environ.pop("NOTIFY_SOCKET", None)
        usec, pid = os.environ.pop("WATCHDOG_USEC", ""), os.environ.pop("WATCHDOG_PID", "")
        meant = address and usec.isdigit() and int(usec) > 0 and pid in {"", str(os.getpid())}
        return cls(address or None, int(usec) / 1e6 if meant else None)

    def notify(self, state: str) -> None:
        """Send READY=1, WATCHDOG=1 or STOPPING=1: sd_notify(3) is one datagram."""
        if self._address is None:
            return
        # A service must not end because systemd does not read.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.setblocking(False)
            connection.connect(self._address)
            connection.send(state.encode())


class SupervisorPipe:
    """A supervised process's end of the pipe to its supervisor. Carries one JSON object a line.

    `hold` is the end of another pipe, which the supervisor closes when this process may retire.
    """

    def __init__(self, descriptor: int, hold: int | None = None) -> None:
        self._descriptor = descriptor
        self._hold = hold
        if hold is not None:
            os.set_inheritable(hold, False)
        # Not for the tasks' own children: the supervisor would wait for them too.
        os.set_inheritable(descriptor, False)
        not_in_forks(descriptor)
        os.set_blocking(descriptor, False)

    @staticmethod
    def environment(*descriptors: int) -> dict[str, str]:
        """Return what a child of this process finds in its environment."""
        return {VARIABLE: ":".join(map(str, (os.getpid(), *descriptors)))}

    @classmethod
    def take(cls) -> "SupervisorPipe | None":
        """Return the pipe if there is a supervisor; this process gets SIGTERM, and drains, when that one ends."""
        value = os.environ.pop(VARIABLE, None)
        if not value:
            return None
        parent, *descriptors = map(int, value.split(":"))
        if not follow_parent(parent, signal.SIGTERM):
            sys.exit("the supervisor is gone")
        return cls(*descriptors)

    def send(self, state: Mapping[str, Any]) -> bool:
        """Write it, unless the pipe is full. Return False if there is no supervisor any more."""
        try:
            # Less than PIPE_BUF, so it is written whole or not at all.
            os.write(self._descriptor, json.dumps(state).encode() + b"\n")
        except BlockingIOError:
            pass
        except BrokenPipeError:
            return False
        return True

    def may_retire(self) -> bool:
        """Return whether no process that had this one's place before still drains."""
        try:
            return self._hold is None or bool(select.select([self._hold], [], [], 0)[0])
        except (OSError, ValueError):  # a task has closed it
            return True
