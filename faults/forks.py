"""Processes forked from one that has imported everything: hundreds of workers are started without importing each time.

`python -m faults.forks` reads orders from its standard input, one of JSON a line, and writes `pid` after each fork and
`pid code` after each end. It dies with its standard input, and what it has forked with it.
"""

import ctypes
import gc
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

_PR_SET_PDEATHSIG = 1


class Forked:
    """One of them; what is used of subprocess.Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended = threading.Event()
        self.code = 0

    def poll(self) -> int | None:
        """How it ended; None while it has not."""
        return self.code if self.ended.is_set() else None

    def wait(self, timeout: float) -> int:
        """Wait for its end; raises subprocess.TimeoutExpired."""
        if not self.ended.wait(timeout):
            raise subprocess.TimeoutExpired([str(self.pid)], timeout)
        return self.code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if not self.ended.is_set():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Forks:
    """The process that forks, from outside."""

    def __init__(self, root: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "faults.forks"], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._made: SimpleQueue[Forked] = SimpleQueue()
        self._all: dict[int, Forked] = {}
        self._guard = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="faults-forks", daemon=True)
        self._reader.start()

    def start(self, arguments: Sequence[str], env: Mapping[str, str], output: Path) -> Forked:
        """Fork one that runs `python arguments`, with this environment."""
        order = json.dumps({"arguments": list(arguments), "env": dict(env), "output": str(output)})
        with self._guard:
            print(order, file=self._process.stdin, flush=True)
            return self._made.get(timeout=120)

    def close(self) -> None:
        """End it, with all that it has forked."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(60)
        self._reader.join(60)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            pid, _, code = line.strip().partition(" ")
            if code:
                forked = self._all.pop(int(pid))
                forked.code = int(code)
                forked.ended.set()
            else:
                self._all[int(pid)] = Forked(int(pid))
                self._made.put(self._all[int(pid)])


# -- inside


def _serve() -> dict[str, Any]:
    """Fork what is ordered; returns in each child, with its order."""
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.set_wakeup_fd(waking)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    orders = b""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 1000)
            _bury()
        if 0 not in ready:
            continue
        data = os.read(0, 65_536)
        if not data:
            os._exit(0)
        *whole, orders = (orders + data).split(b"\n")
        for line in whole:
            order: dict[str, Any] = json.loads(line)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                os.close(woken)
                os.close(waking)
                return order
            _say(str(pid))


def _bury() -> None:
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            _say(f"{found[0]} {os.waitstatus_to_exitcode(found[1])}")


def _say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


def _become(order: Mapping[str, Any]) -> None:
    """In the child: be what was ordered."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(order["env"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for file, number in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(file, number)
    os.close(nothing)
    os.close(output)
    time.tzset()
    _, program, *arguments = order["arguments"]
    sys.argv = [program, *arguments]
    runpy.run_module(program, run_name="__main__", alter_sys=True)


def _import_everything() -> None:
    import leasehold.cli.app  # noqa: PLC0415 (what is imported here, is in every child)
    import leasehold.cli.serve  # noqa: PLC0415
    import leasehold.cli.worker  # noqa: PLC0415
    import leasehold.http.app  # noqa: PLC0415
    import leasehold.worker.loops  # noqa: F401, PLC0415


if __name__ == "__main__":
    _import_everything()
    gc.freeze()  # else each child scans all of it when it ends: half a second of CPU
    _become(_serve())
