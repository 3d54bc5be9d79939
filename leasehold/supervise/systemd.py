"""Telling systemd: sd_notify(3) is one datagram."""

import contextlib
import os
import socket


class Systemd:
    """The service manager, if there is one; otherwise every word goes nowhere."""

    def __init__(self, address: str | None = None, watchdog: float | None = None) -> None:
        self._address = address
        self.watchdog = watchdog
        """Seconds of silence after which systemd takes us for hung; None: it does not look."""

    @classmethod
    def take(cls) -> "Systemd":
        """Read what systemd has set, and take it out of the environment: it is not meant for our children."""
        address = os.environ.pop("NOTIFY_SOCKET", None)
        usec, pid = os.environ.pop("WATCHDOG_USEC", ""), os.environ.pop("WATCHDOG_PID", "")
        meant = address and usec.isdigit() and int(usec) > 0 and pid in {"", str(os.getpid())}
        return cls(address or None, int(usec) / 1e6 if meant else None)

    def ready(self) -> None:
        """The service works."""
        self._tell("READY=1")

    def stopping(self) -> None:
        """The service is about to end."""
        self._tell("STOPPING=1")

    def alive(self) -> None:
        """The service is not hung."""
        self._tell("WATCHDOG=1")

    def _tell(self, word: str) -> None:
        if self._address is None:
            return
        # A name that starts with @ is abstract: its first byte is 0.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        # A service must not end because nobody listens.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.setblocking(False)
            notify.connect(address)
            notify.send(word.encode())
