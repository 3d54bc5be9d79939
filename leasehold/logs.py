"""How programs of Leasehold log: as text or as JSON, with the job that a line belongs to.

Whatever a task logs carries its job, in the event loop, in a thread and in a process. Formatters of your own find it in
the record: `record.leasehold_job` is a dict of job_id, attempt, kind and queue, or None.
"""

import json
import logging
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from leasehold._log_writer import LogWriter
from leasehold._os_process import keep_standard
from leasehold._texts import many_lines, repr_of, text_of
from leasehold.context import running_job

_LONGEST: Final = 100_000
"""Characters of a message in a line of JSON."""

# uvicorn's color_message is its message once more, with the codes of a terminal.
_ADDED: Final = {"message", "asctime", "leasehold", "leasehold_job", "leasehold_worker", "taskName", "color_message"}
_PLAIN: Final = frozenset(vars(logging.makeLogRecord({}))) | _ADDED
"""What a record has anyway; everything else was given to it as `extra`."""


class Format(StrEnum):
    """The form of a line."""

    TEXT = "text"
    JSON = "json"


class Level(StrEnum):
    """What is important enough to be logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def configure(
    level: Level = Level.INFO,
    format: Format = Format.TEXT,  # noqa: A002 (the option's name)
    *,
    tracebacks: bool = False,
    background: bool = False,
    wait: float = 0,
) -> None:
    """Log to standard error. To be called once, at the start of a program.

    `tracebacks`: as text, too, each failed attempt has one, not only the last.
    `background`: no caller waits while a line is written, or only so many seconds (`wait`).
    """
    global chosen, _writer  # noqa: PLW0603 (so is logging)
    chosen = level, format
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    stream = sys.__stderr__
    if background and stream is not None and stream is sys.stderr:
        handler = _writer = LogWriter(keep_standard(), stream.encoding, wait)
    handler.setFormatter(JsonLines() if format == Format.JSON else TextLines(tracebacks=tracebacks))
    handler.setLevel(level.upper())
    root = logging.getLogger()
    root.addHandler(handler)
    # Lower than the handler's, perhaps: what jobs log is kept with them, however little is written here.
    root.setLevel(min(logging.INFO, handler.level))


def flush(seconds: float = 0.5) -> None:
    """Wait at most so long for lines that are written in the background."""
    if _writer is not None:
        _writer.flush(seconds)


def say(text: str) -> bool:
    """Write a text in the background, after the lines before it; return False where there is no background."""
    if _writer is None:
        return False
    _writer.say(text)
    return True


@contextmanager
def bound(worker: str | None = None) -> Iterator[None]:
    """Have each record know its worker, and the job in which it was made, also when a thread writes it later."""
    make = logging.getLogRecordFactory()

    def made(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        record.leasehold_worker = worker
        job = running_job()
        # One attribute with an odd name: a task's own `extra` may have an "attempt".
        record.leasehold_job = None if job is None else {
            "job_id": str(job.id), "attempt": job.attempt, "kind": job.kind, "queue": job.queue
        }  # fmt: skip
        return record

    logging.setLogRecordFactory(made)
    try:
        yield
    finally:
        logging.setLogRecordFactory(make)


chosen: tuple[Level, Format] = (Level.WARNING, Format.TEXT)
"""What was given to `configure`, for processes that shall log alike."""
_writer: LogWriter | None = None


class TextLines(logging.Formatter):
    """For people: time, level, logger, the job, the message."""

    def __init__(self, *, tracebacks: bool = False) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s%(leasehold_where)s: %(message)s")
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback where it is wanted and not in the message."""
        line = super().format(record)
        if self._tracebacks and (traceback := getattr(record, "leasehold", {}).get("traceback")):
            shown = many_lines(traceback.rstrip())
            return line if shown in line else f"{line}\n{shown}"
        return line

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        """Return the line without a traceback."""
        job = getattr(record, "leasehold_job", None)
        request = getattr(record, "request_id", None)
        record.leasehold_where = "" if request is None else f" [request {request}]"
        if job is not None:
            record.leasehold_where = f" [{job['kind']} {job['job_id']} attempt {job['attempt']}]"
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    """For programs: one object a line, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created if math.isfinite(record.created) else time.time(), UTC)
            .isoformat(timespec="milliseconds"),
            "level": record.levelname, "logger": record.name, "message": text_of(_message(record), _LONGEST),
            "pid": record.process,
        }  # fmt: skip
        line |= {"worker": worker} if (worker := getattr(record, "leasehold_worker", None)) else {}
        line |= getattr(record, "leasehold_job", None) or {}
        line |= getattr(record, "leasehold", {})
        extra = {name: _plain(value) for name, value in vars(record).items() if name not in _PLAIN}
        line |= {name: value for name, value in extra.items() if name not in line}
        if record.exc_info:
            line["traceback"] = text_of(self.formatException(record.exc_info), _LONGEST)
        elif record.exc_text:
            line["traceback"] = record.exc_text
        return json.dumps(line, separators=(",", ":"))


def _message(record: logging.LogRecord) -> str:
    try:
        # A line of JSON has the traceback in a field of its own.
        trace = getattr(record, "leasehold", {}).get("traceback")
        text = record.getMessage()
        return text.removesuffix(f"\n{many_lines(trace.rstrip())}") if isinstance(trace, str) and trace else text
    except Exception:  # noqa: BLE001 (the text and its arguments do not fit: that is no reason to lose the line)
        return f"{record.msg} {repr_of(record.args)}"


def _plain(value: object) -> object:
    if value is None or isinstance(value, str | bool | int):
        return value
    return value if isinstance(value, float) and math.isfinite(value) else repr_of(value, 1000)
