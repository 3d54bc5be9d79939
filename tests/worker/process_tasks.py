"""Tasks for processes: a process finds them by importing this module."""

import asyncio
import atexit
import contextlib
import ctypes
import gc
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

from leasehold import App, FixedDelay, JobContext, NoRetry, Retry, Snooze, current_job
from leasehold.worker.process_main import pack
from leasehold.worker.surroundings import Surroundings

MB = 1024 * 1024
CAP = 256 * MB

app = App("postgresql://127.0.0.1:1/none")


class Colour(Enum):
    RED = "red"


@dataclass
class Parcel:
    weight: Decimal
    colour: Colour
    sent: datetime
    label: bytes
    parts: dict[str, tuple[int, ...]]


@app.task(kind="p.pid", executor="process")
def pid(seconds: float = 0) -> int:
    time.sleep(seconds)
    return os.getpid()


@app.task(kind="p.linger", executor="process")
def linger() -> int:
    """Leaves a thread behind that keeps its process from exiting."""
    threading.Thread(target=time.sleep, args=(600,)).start()
    return os.getpid()


@app.task(kind="p.leave_exit", executor="process")
def leave_exit(daemon: bool, file: Path) -> int:
    """Leaves a thread behind that ends its process as soon as there is a file."""

    def leave() -> None:
        while not file.exists():
            time.sleep(0.01)
        os._exit(3)

    threading.Thread(target=leave, daemon=daemon).start()
    return os.getpid()


@app.task(kind="p.touch", executor="process")
def touch(file: Path) -> int:
    file.touch()
    time.sleep(0.5)  # for a thread that would end this process
    return os.getpid()


@app.task(kind="p.meddle", executor="process")
def meddle(code: str) -> int:
    exec(code)  # noqa: S102
    return os.getpid()


@app.task(kind="p.look", executor="process")
def look() -> dict[str, Any]:
    """What this process has from the system, and whether a program that fails is seen to fail."""
    seen = Surroundings.now()._asdict()
    seen["handlers"] = [getattr(handler, "__name__", str(handler)) for _, handler in seen["handlers"]]
    return {**seen, "alarm": signal.alarm(0), "code": subprocess.run(["false"], check=False).returncode}


@app.task(kind="p.patient", executor="process", lease=600)
def patient() -> None:
    time.sleep(600)


@app.task(kind="p.strict", executor="process")
def strict(n: int) -> int:
    return n


@app.task(kind="p.hasty", executor="process", timeout=0.3)
def hasty() -> int:
    return os.getpid()


@app.task(kind="p.parcel", executor="process")
def parcel(one: Parcel, owner: UUID, tags: set[str]) -> tuple[Parcel, UUID, set[str]]:
    return Parcel(one.weight * 2, one.colour, one.sent + timedelta(days=1), one.label[::-1], one.parts), owner, tags


@app.task(kind="p.later", executor="process")
async def later(text: str) -> str:
    await asyncio.sleep(0.01)
    return f"{text} {current_job().kind}"


@app.task(kind="p.who", executor="process")
def who() -> dict[str, Any]:
    job = current_job()
    job.checkpoint()
    job.progress(0.25, "a quarter")
    job.progress(0.5, "half")
    job.log.info("said %s", "so")
    time.sleep(0.2)
    names = ("kind", "queue", "attempt", "retry_count", "max_attempts")
    return {"id": str(job.id), **{name: getattr(job, name) for name in names}}


@app.task(kind="p.chatty", executor="process")
def chatty() -> None:
    job = current_job()
    for number in range(50_000):
        job.progress(number / 50_000)
    for number in range(5_000):
        job.log.info("line %d", number)


def deeper() -> None:
    raise LookupError("no luck")


@app.task(kind="p.fail", executor="process", retry=FixedDelay(7))
def fail() -> None:
    deeper()


@app.task(kind="p.afail", executor="process", retry=NoRetry())
async def afail() -> None:
    await asyncio.sleep(0)
    deeper()


@app.task(kind="p.picky", executor="process", retry=lambda failures, error: 40 + failures if error.args[0] else None)
def picky(again: bool) -> None:
    raise ValueError(again)


@app.task(kind="p.snooze", executor="process")
def snooze() -> None:
    raise Snooze(12)


@app.task(kind="p.retry", executor="process")
def retry() -> Retry:
    return Retry(after=13, reason="not yet")


@app.task(kind="p.segfault", executor="process", max_attempts=3, retry=FixedDelay(0.05))
def segfault() -> None:
    ctypes.string_at(0)


@app.task(kind="p.exit", executor="process", retry=NoRetry())
def leave(code: int) -> None:
    os._exit(code)


@app.task(kind="p.sysexit", executor="process", retry=NoRetry())
def sysexit() -> None:
    sys.exit(4)


@app.task(kind="p.kill", executor="process", max_attempts=1)
def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(kind="p.eat", executor="process", memory=CAP, max_attempts=1)
def eat(how: str) -> None:
    kept: list[object] = []
    while True:
        match how:
            case "blocks":
                kept.append(bytearray(MB))
            case "crumbs":
                kept.append(str(len(kept)))


@app.task(kind="p.modest", executor="process", memory=CAP)
def modest() -> int:
    return len(bytearray(CAP // 2)) and os.getpid()


@app.task(kind="p.shared", executor="process", memory=CAP)
def share() -> int:
    """How many bytes can be mapped shared, which is no data of the process alone."""
    kept = []
    try:
        while True:
            kept.append(mmap.mmap(-1, 64 * MB))
    except OSError:
        return len(kept) * 64 * MB


@app.task(kind="p.large", executor="process")
def large() -> int:
    return len(bytearray(CAP * 2)) and os.getpid()


def _beat(file: Path) -> None:
    while True:
        with file.open("a") as out:
            out.write(".")
        time.sleep(0.01)


@app.task(kind="p.slow", executor="process", timeout=0.5, max_attempts=1)
def slow(folder: Path) -> None:
    """Never ends, nor does the program that it starts."""
    loop = f"while :; do printf . >> {folder}/program; sleep 0.01; done"
    subprocess.Popen(["sh", "-c", loop])
    (folder / "pid").write_text(str(os.getpid()))
    _beat(folder / "beat")


@app.task(kind="p.endless", executor="process", lease=2)
def endless(folder: Path) -> None:
    (folder / "pid").write_text(str(os.getpid()))
    _beat(folder / "beat")


_FORGED = {"type": "outcome", "call": 10_000, "outcome": "success", "result": "1", "spent": False}
GARBAGE = {
    "text": b"hello, world\n",
    "one byte": b"x",
    "a header": b"\0\0\0\0\0\0\xff\xff",  # of a frame that would never be complete
    "no JSON": pack({"a": 1}).replace(b"{", b"["),
    "no object": pack({}).replace(b"{}", b"[]"),
    "no type": pack({"call": 1}),
    "another call": pack(_FORGED),
}


@app.task(kind="p.garbage", executor="process", max_attempts=1)
def garbage(what: str) -> None:
    os.write(int(sys.argv[1]), GARBAGE[what])


@app.task(kind="p.late", executor="process")
def late_garbage(file: Path) -> int:
    """Leaves a fork of a fork behind that spoils the socket after the job has ended, and makes the file then."""
    if (fork := os.fork()) != 0:
        os.waitpid(fork, 0)
    elif os.fork() != 0:
        os._exit(0)
    else:
        time.sleep(0.2)
        os.write(int(sys.argv[1]), b"late")
        file.touch()
        os._exit(0)
    return os.getpid()


@app.task(kind="p.fork", executor="process", max_attempts=1)
def fork_and_die(file: Path) -> None:
    """The fork keeps the socket open, in a session of its own."""
    fork = os.fork()
    if fork == 0:
        os.setsid()
        time.sleep(300)
        os._exit(0)
    file.write_text(str(fork))
    os._exit(5)


@app.task(kind="p.twice", executor="process")
def come_back_twice() -> int:
    os.fork()
    return os.getpid()


@app.task(kind="p.sockets", executor="process")
def sockets() -> dict[str, int]:
    links = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(fd.readlink()))
        except FileNotFoundError:
            continue  # the listing itself
    inheritable = os.get_inheritable(int(sys.argv[1]))
    return {"sockets": sum(link.startswith("socket:") for link in links), "inheritable": inheritable}


@app.task(kind="p.signals", executor="process")
def signals() -> list[bool]:
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    program = subprocess.run(["sh", "-c", "kill -TERM $$"], check=False)
    return [os.getsid(0) == os.getpid(), program.returncode == -signal.SIGTERM]


@app.task(kind="p.say", executor="process")
def say(text: str) -> None:
    print(f"out {text}")
    print(f"err {text}", file=sys.stderr)
    socket.socketpair()[0].detach()  # fd leaks of a task are its own


@app.task(kind="p.atexit", executor="process")
def at_exit(file: Path) -> None:
    atexit.register(file.write_text, "bye")


@app.task(kind="p.complete", executor="process")
def complete(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        current_job().complete_in(connection, 7)
    return 7


def complete_in_some_way(dsn: str, way: str) -> None:
    """Leave an effect and complete the job; in the first attempt in this way, later with a commit."""
    job = current_job()
    connection = psycopg.connect(dsn, options="-c search_path=leasehold")
    try:
        connection.execute("insert into effects values (%s, %s)", [job.id, job.attempt])
        if job.attempt > 1 or way == "commit":
            job.complete_in(connection)
            connection.commit()
        elif way == "rollback":
            job.complete_in(connection)
            connection.rollback()
        elif way == "forget":
            job.complete_in(connection)
        elif way == "savepoint":
            with connection.transaction(), connection.transaction(force_rollback=True):
                job.complete_in(connection)
            connection.rollback()
        elif way == "commit fails":
            connection.execute("create temp table twice (n integer unique deferrable initially deferred)")
            connection.execute("insert into twice values (1), (1)")
            job.complete_in(connection)
            with contextlib.suppress(psycopg.IntegrityError):
                connection.commit()
    finally:
        connection.close()


@app.task(kind="p.complete_somehow", executor="process", lease=10, retry=FixedDelay(0.05))
def complete_somehow(dsn: str, way: str) -> None:
    complete_in_some_way(dsn, way)


@app.task(kind="p.hooked", executor="process", retry=NoRetry())
def hooked(file: Path) -> None:
    raise FileNotFoundError(2, "none", str(file))


@app.on_error
async def note(job: JobContext, error: Exception) -> None:
    if job.kind == "p.hooked" and isinstance(error, FileNotFoundError):
        await asyncio.sleep(0)
        Path(error.filename).write_text(f"{job.id} {datetime.now(UTC):%Y}")


@app.task(kind="n.loop")
async def on_loop(n: int) -> int:
    await asyncio.sleep(0.5)
    return n


@app.task(kind="n.thread")
def in_thread(n: int) -> int:
    time.sleep(0.5)
    return n


@app.task(kind="p.lease", executor="process", lease=2)
def brief_lease() -> int:
    time.sleep(5)
    return current_job().attempt


class Held:
    """Stands for a connection, or for much memory."""


held: list[weakref.ref[Held]] = []


@app.task(kind="p.keep", executor="process", retry=NoRetry())
def keep() -> None:
    gc.disable()
    variable = Held()
    held.append(weakref.ref(variable))
    raise ValueError("refused")


@app.task(kind="p.akeep", executor="process", retry=NoRetry())
async def akeep() -> None:
    keep.function()


@app.task(kind="p.kept", executor="process")
def kept() -> list[bool]:
    return [one() is not None for one in held]
