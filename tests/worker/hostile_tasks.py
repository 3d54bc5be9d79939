"""Tasks that say what cannot be stored, and raise what cannot be printed: one corpus for loop, thread and process."""

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from leasehold import App, Cancel, Retry, Snooze, current_job

app = App("postgresql://127.0.0.1:1/none")

ODD = "caf\udce9\x00.txt"
LONG = "x\udcff\x00" * 100_000


_ODD_LEVEL = 77
logging.addLevelName(_ODD_LEVEL, ODD * 99)


class Unprintable(Exception):
    """Neither str() nor repr() ends well."""

    def __str__(self) -> NoReturn:
        raise SystemExit(3)

    def __repr__(self) -> NoReturn:
        raise KeyboardInterrupt


class Text(str):
    """Not what it seems."""

    __slots__ = ()

    def encode(self, *_: object) -> NoReturn:
        raise SystemExit(4)

    def __getitem__(self, *_: object) -> NoReturn:
        raise SystemExit(5)

    def __str__(self) -> str:
        return self


class Lying(Exception):
    """Its class raises."""

    @property
    def __class__(self) -> Any:
        raise SystemExit(6)


def _throw(error: BaseException) -> NoReturn:
    raise error


def _named(name: str) -> NoReturn:
    raise type("Odd", (Exception,), {"__qualname__": name, "__module__": name})("with an odd class")


def _log(*args: object, level: int = logging.INFO) -> None:
    logging.getLogger("shop").log(level, *args)


def _log_a_record_without_time() -> None:
    logging.getLogger().handle(logging.makeLogRecord({"created": float("nan"), "levelno": 30, "msg": "when?"}))


def _snooze_at(after: object) -> NoReturn:
    snooze = Snooze(1)
    snooze.after = after  # type: ignore[assignment]
    raise snooze


def _add_note() -> NoReturn:
    error = ValueError("with a note")
    error.add_note(ODD)
    raise error


SAYINGS: dict[str, Callable[[], object]] = {
    "note": lambda: current_job().progress(0.5, ODD),
    "note, long": lambda: current_job().progress(0.5, LONG),
    "note, unprintable": lambda: current_job().progress(0.5, Unprintable()),  # type: ignore[arg-type]
    "note, no text": lambda: current_job().progress(0.5, Text("t")),
    "progress, tiny": lambda: current_job().progress(1e-300),
    "progress, NaN": lambda: current_job().progress(float("nan")),
    "progress, a word": lambda: current_job().progress("half"),  # type: ignore[arg-type]
    "log": lambda: _log(ODD),
    "log, long": lambda: _log(LONG),
    "log, unprintable": lambda: _log("%s", Unprintable()),
    "log, odd level": lambda: _log("hm", level=_ODD_LEVEL),
    "log, no time": _log_a_record_without_time,
    "cancel": lambda: _throw(Cancel(ODD)),
    "cancel, long": lambda: _throw(Cancel(LONG)),
    "cancel, unprintable": lambda: _throw(Cancel(Unprintable())),  # type: ignore[arg-type]
    "cancel, returned": lambda: Cancel(ODD),
    "retry": lambda: _throw(Retry(after=3000, reason=ODD)),
    "retry, unprintable": lambda: _throw(Retry(reason=Unprintable())),  # type: ignore[arg-type]
    "snooze, ten years": lambda: _throw(Snooze(315_500_000)),
    "snooze, NaN": lambda: _snooze_at(float("nan")),
    "snooze, a word": lambda: _snooze_at("soon"),
    "raise": lambda: _throw(ValueError(ODD)),
    "raise, long": lambda: _throw(ValueError(LONG)),
    "raise, unprintable": lambda: _throw(Unprintable()),
    "raise, no text": lambda: _throw(ValueError(Text("t"))),
    "raise, class name": lambda: _named(ODD),
    "raise, long class name": lambda: _named(LONG),
    "raise, lying": lambda: _throw(Lying()),
    "raise, a note": _add_note,
    "exit": lambda: sys.exit(ODD),
    "interrupt": lambda: _throw(KeyboardInterrupt()),
    "return": lambda: {"file": ODD},
    "return, unprintable": Unprintable,
    "return, NaN": lambda: [float("nan")],
}
"""What each does. Unless it raises or returns a signal, its job succeeds or has a result that cannot be stored."""

GATHERED: dict[str, Callable[[], object]] = {
    "exit": lambda: sys.exit(1),
    "interrupt": lambda: _throw(KeyboardInterrupt()),
}
"""What a child of asyncio.gather does."""


def _linger(what: str) -> float:
    """Seconds until after the next heartbeat, which writes what was said."""
    return 1.5 if what.startswith(("note", "progress", "log")) else 0


@app.task(kind="h.loop", max_attempts=1, lease=3)
async def on_loop(what: str) -> Any:
    value = SAYINGS[what]()
    await asyncio.sleep(_linger(what))
    return value


@app.task(kind="h.thread", max_attempts=1, lease=3)
def in_thread(what: str) -> Any:
    value = SAYINGS[what]()
    time.sleep(_linger(what))
    return value


@app.task(kind="h.process", max_attempts=1, lease=3, executor="process")
def in_process(what: str) -> Any:
    value = SAYINGS[what]()
    time.sleep(_linger(what))
    return value


@app.task(kind="h.gathered", max_attempts=1)
async def gathered(what: str) -> None:
    async def child() -> None:
        await asyncio.sleep(0)
        GATHERED[what]()

    await asyncio.gather(child(), asyncio.sleep(0.01))


@app.task(kind="h.grouped", max_attempts=1)
async def grouped(what: str) -> None:
    async def child() -> None:
        GATHERED[what]()

    async with asyncio.TaskGroup() as group:
        group.create_task(child())


@app.task(kind="h.neighbour", lease=3, max_attempts=1)
async def neighbour() -> str:
    for _ in range(8):  # several heartbeats, with what the others said
        await asyncio.sleep(0.25)
        current_job().heartbeat()
    return "undisturbed"
