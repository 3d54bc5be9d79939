"""What a process of a fault run did and saw, line by line. FORMAT.md says what the lines hold.

A line is handed to the operating system before the call returns: a process that is killed the moment after leaves it
behind. Only a line that was being written when the process died may be torn, and only the last of a file.
"""

import itertools
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from uuid import uuid4

RESERVED: Final = frozenset({"at", "mono", "process", "op", "phase", "call"})
"""Fields that the log writes itself."""


class Log:
    """One process's own file: safe for its threads, never shared between processes."""

    def __init__(self, path: str | Path, process: str, *, fsync: bool = False) -> None:
        self.path = Path(path)
        self.process = process
        self._fsync = fsync
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._open = uuid4().hex[:8]
        self._ops: dict[str, str] = {}
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        # A predecessor that was killed may have left half a line: it must not swallow ours.
        if os.fstat(self._file).st_size and not _ends_with_newline(self.path):
            os.write(self._file, b"\n")

    def invoke(self, op: str, **fields: Any) -> str:
        """Say what is about to be asked for. Gives the call's id, which its answer has to name."""
        call = f"{self.process}.{self._open}.{next(self._numbers)}"
        with self._lock:
            self._ops[call] = op
        self._write(op, "invoke", call, fields)
        return call

    def ok(self, call: str, **fields: Any) -> None:
        """Say that the call was answered: it happened."""
        self._write(self._answered(call), "ok", call, fields)

    def fail(self, call: str, **fields: Any) -> None:
        """Say that the call was refused: it certainly did not happen, and never will."""
        self._write(self._answered(call), "fail", call, fields)

    def unknown(self, call: str, **fields: Any) -> None:
        """Say that no answer came: it may have happened, or happen later. The call may still be answered."""
        with self._lock:
            op = self._ops[call]
        self._write(op, "unknown", call, fields)

    def note(self, op: str, **fields: Any) -> None:
        """Say something that is no call: an effect, a fault, what is expected."""
        self._write(op, "note", None, fields)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answered(self, call: str) -> str:
        with self._lock:
            return self._ops.pop(call)

    def _write(self, op: str, phase: str, call: str | None, fields: dict[str, Any]) -> None:
        if taken := RESERVED & fields.keys():
            raise ValueError(f"the log writes {', '.join(sorted(taken))} itself; give the field another name")
        line: dict[str, Any] = {"at": time.time(), "mono": time.monotonic_ns(), "process": self.process}
        line |= {"op": op, "phase": phase, "call": call} | fields
        text = json.dumps(line, default=str) + "\n"
        with self._lock:
            os.write(self._file, text.encode())
            if self._fsync:
                os.fsync(self._file)


def read(path: str | Path) -> Iterator[dict[str, Any]]:
    """The lines of a file. Torn ones are passed over: their process was killed while it wrote them."""
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        for text in file:
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict):
                yield line


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
