"""What tasks do, beyond saying something: each is called in a task, on the loop, in a thread or in a process."""

import asyncio
import atexit
import contextlib
import faulthandler
import gc
import locale
import logging
import os
import random
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, Final, NoReturn

from leasehold import Cancel, Retry, Snooze, current_job


def raises(error: BaseException) -> Callable[[], NoReturn]:
    """A behaviour that raises this."""

    def behave() -> NoReturn:
        raise error

    return behave


class BadStr(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("no text")


class ExitStr(Exception):
    """To ask for its text ends the program."""

    def __str__(self) -> str:
        sys.exit(3)


class EndlessStr(Exception):
    """Its text needs its text."""

    def __str__(self) -> str:
        return str(self)


class NotText(Exception):
    """Its text is none."""

    def __str__(self) -> str:
        return 3  # type: ignore[return-value]


class Unpicklable(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, _one: object, _two: object) -> None:
        super().__init__("one argument")
        self.lock = threading.Lock()


def _strange_class(name: str) -> type[Exception]:
    found = type("Strange", (Exception,), {"__module__": "m\udcff\x1b"})
    found.__qualname__ = name
    return found


def _circle() -> NoReturn:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


def _recursion() -> Any:
    return _recursion()


def _deep_causes() -> NoReturn:
    error: BaseException = ValueError("root")
    for n in range(500):
        new = ValueError(str(n))
        new.__cause__ = error
        error = new
    raise error


def _noted() -> NoReturn:
    error = ValueError("with notes")
    error.add_note("note \0 \ud800" * 10_000)
    raise error


def _thread_raises() -> None:
    thread = threading.Thread(target=raises(ValueError("in a thread \0")))
    thread.start()
    thread.join(5)


def _thread_exits() -> None:
    thread = threading.Thread(target=lambda: sys.exit(3))
    thread.start()
    thread.join(5)


def _log_much() -> None:
    for n in range(5000):
        logging.getLogger("poison").warning("line %s", n)


def _print_much() -> None:
    sys.stdout.write("x" * 300_000 + "\n")
    sys.stderr.write("y" * 300_000 + "\n")


def _broken_handler() -> None:
    class Broken(logging.Handler):
        def emit(self, _record: logging.LogRecord) -> None:
            raise RuntimeError("a handler that raises")

    handler = Broken()
    logging.getLogger("poison").addHandler(handler)
    try:
        with contextlib.suppress(RuntimeError):
            logging.getLogger("poison").error("said to a broken handler")
    finally:
        logging.getLogger("poison").removeHandler(handler)


def _snooze_once() -> None:
    if current_job().attempt == 1:
        raise Snooze(0.1)


def _progress_in_thread() -> None:
    job = current_job()
    thread = threading.Thread(target=lambda: job.progress(0.5, "from another thread \udcff"))
    thread.start()
    thread.join(5)


def _much_progress() -> None:
    for n in range(2000):
        current_job().progress(n / 2000, f"{n} \0 \ud800")


def _heartbeat_often() -> None:
    for _ in range(50):
        current_job().heartbeat()


def _progress_nonsense() -> None:
    for value in (float("nan"), -1, 2, "x", None):
        with contextlib.suppress(ValueError, TypeError):
            current_job().progress(value)  # type: ignore[arg-type]


def _garbage() -> None:
    found: list[Any] = []
    for _ in range(50_000):
        found.append([found])
    gc.collect()


EVERYWHERE: Final[dict[str, Callable[[], Any]]] = {
    "raise Exception": raises(Exception()), "raise with arguments": raises(ValueError("a", 1, b"\0", object())),
    "raise BaseException": raises(BaseException("base")), "raise KeyError": raises(KeyError("\0\ud800")),
    "raise StopIteration": raises(StopIteration(3)), "raise StopAsyncIteration": raises(StopAsyncIteration()),
    "raise GeneratorExit": raises(GeneratorExit()), "raise CancelledError": raises(asyncio.CancelledError("\0")),
    "raise TimeoutError": raises(TimeoutError("mine")), "raise OSError": raises(OSError(28, "No space left", "f\udce9\0")),
    "raise MemoryError": raises(MemoryError()), "raise RecursionError": _recursion, "raise AssertionError": raises(AssertionError()),
    "raise UnicodeEncodeError": lambda: "\ud800".encode(), "raise SyntaxError": lambda: compile("a b\0", "f\udcff", "exec"),
    "raise ImportError": lambda: __import__("no.such\udcff"), "raise a group": raises(ExceptionGroup("g\0", [ValueError("\0"), KeyError()])),
    "raise a group of exits": raises(BaseExceptionGroup("g", [SystemExit(3), KeyboardInterrupt()])),
    "sys.exit": lambda: sys.exit(3), "sys.exit text": lambda: sys.exit("text \0 \ud800"), "sys.exit 0": lambda: sys.exit(),
    "KeyboardInterrupt": raises(KeyboardInterrupt()), "str raises": raises(BadStr()), "str exits": raises(ExitStr()),
    "str recurses": raises(EndlessStr()), "str is no text": raises(NotText()), "unpicklable": raises(Unpicklable(1, 2)),
    "class name with NUL": raises(_strange_class("A\0B\x1b")("x")),
    "long class name": raises(_strange_class("L" * 50_000)("x")), "class name of surrogates": raises(_strange_class("\udcff")("x")),
    "circular causes": _circle, "500 causes": _deep_causes, "notes": _noted, "a message of 5 MB": raises(ValueError("m" * 5_000_000)),
    "a message with NUL": raises(ValueError("a\0b")), "a message with a surrogate": raises(ValueError("a\udcffb")),
    "Cancel": raises(Cancel("bad byte \0 \udcff")), "Cancel of 2 MB": raises(Cancel("c" * 2_000_000)), "Snooze": _snooze_once,
    "Retry": raises(Retry(0.1, "r\0\udcff")), "Cancel returned": lambda: Cancel("\0"), "a thread raises": _thread_raises,
    "a thread exits": _thread_exits, "5000 log lines": _log_much, "300 kB printed": _print_much, "a broken log handler": _broken_handler,
    "progress from another thread": _progress_in_thread, "2000 notes of progress": _much_progress, "50 heartbeats": _heartbeat_often,
    "progress of nonsense": _progress_nonsense, "cyclic garbage": _garbage, "warnings": lambda: warnings.warn("w\0\udcff", stacklevel=1),
    "logging disabled": lambda: (logging.disable(logging.CRITICAL), logging.disable(logging.NOTSET)), "locale": lambda: locale.setlocale(locale.LC_ALL, "C"),
    "recursion limit": lambda: sys.setrecursionlimit(max(400, sys.getrecursionlimit())), "umask and cwd": lambda: (os.umask(0o077), os.chdir("/")),
    "environment cleared": os.environ.clear, "seed": lambda: random.seed(0), "default timeout": lambda: socket.setdefaulttimeout(0.001),
    "gc off": gc.disable, "an exit hook that raises": lambda: atexit.register(raises(ValueError("at exit"))), "faulthandler off": faulthandler.disable,
    "a descriptor leaked": lambda: os.pipe(), "a file never closed": lambda: open("/dev/null"), "sleep": lambda: time.sleep(0.3),  # noqa: PTH123, SIM115
}  # fmt: skip
"""In any kind of task. What they change for a whole process does not matter to the worker, or is put back."""


# -- on the event loop only


async def _gather_exit() -> None:
    async def child() -> None:
        sys.exit(3)

    await asyncio.gather(child(), asyncio.sleep(0.1))


async def _group_interrupt() -> None:
    async def child() -> None:
        raise KeyboardInterrupt

    async with asyncio.TaskGroup() as group:
        group.create_task(child())


async def _orphan_raises() -> None:
    async def child() -> None:
        raise ValueError("an orphan \0 \udcff")

    _orphans.append(asyncio.create_task(child()))
    await asyncio.sleep(0.05)


async def _orphan_exits() -> None:
    async def child() -> None:
        sys.exit(3)

    _orphans.append(asyncio.create_task(child()))
    await asyncio.sleep(0.05)


async def _callback_raises() -> None:
    asyncio.get_running_loop().call_soon(raises(ValueError("in a callback")))
    await asyncio.sleep(0.05)


async def _cancels_itself() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.cancel("by myself \0")
    await asyncio.sleep(1)


async def _swallows_cancel() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(1)


async def _raises_in_finally() -> None:
    try:
        await asyncio.sleep(0)
    finally:
        raise ValueError("in finally \0")


async def _blocks_the_loop() -> None:
    time.sleep(1)  # noqa: ASYNC251 (that is the behaviour)


async def _many_tasks() -> None:
    await asyncio.gather(*(asyncio.sleep(0.01) for _ in range(5000)))


async def _exception_handler() -> None:
    loop = asyncio.get_running_loop()
    old = loop.get_exception_handler()
    loop.set_exception_handler(lambda _loop, _context: sys.exit(3))
    loop.call_exception_handler({"message": "on purpose"})
    loop.set_exception_handler(old)


_orphans: list[Any] = []

ON_THE_LOOP: Final[dict[str, Callable[[], Any]]] = {
    "gather with sys.exit": _gather_exit, "TaskGroup with KeyboardInterrupt": _group_interrupt, "an orphan raises": _orphan_raises,
    "an orphan exits": _orphan_exits, "a callback raises": _callback_raises, "cancels itself": _cancels_itself,
    "swallows a cancellation": _swallows_cancel, "raises in finally": _raises_in_finally, "blocks the loop for a second": _blocks_the_loop,
    "5000 tasks": _many_tasks, "an exception handler that exits": _exception_handler,
}  # fmt: skip
"""In coroutines."""

DEADLY: Final[dict[str, Callable[[], Any]]] = {
    "os._exit": lambda: os._exit(3), "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL), "abort": os.abort,
    "SIGSEGV": lambda: os.kill(os.getpid(), signal.SIGSEGV), "stdout closed": lambda: os.close(1), "all descriptors closed": lambda: os.closerange(3, 500),
}  # fmt: skip
"""They end their process: in a process task only, where it is not the worker's."""
