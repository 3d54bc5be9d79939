"""An app with something around its tasks, for processes too."""

import threading
from collections.abc import AsyncIterator, Iterator

from leasehold import App, JobContext, Snooze, current_job

app = App("postgresql://127.0.0.1:1/none")
place = threading.local()


@app.around
def outer(job: JobContext) -> Iterator[None]:
    place.seen = [f"outer {job.kind}"]
    if job.kind == "a.held" and job.attempt == 1:
        raise Snooze(0.05)
    try:
        yield
    except KeyError:
        raise ValueError("translated") from None
    finally:
        current_job().log.info("left %s", threading.current_thread().name)


@app.around
def inner(job: JobContext) -> Iterator[None]:
    place.seen.append(f"inner {job.attempt}")
    yield


@app.around
async def awaited(_job: JobContext) -> AsyncIterator[None]:
    place.seen.append("awaited")
    yield


@app.task(kind="a.loop")
async def on_loop() -> list[str]:
    return list(place.seen)


@app.task(kind="a.timed", timeout=60)
async def timed() -> list[str]:
    return list(place.seen)


@app.task(kind="a.thread")
def in_thread() -> list[str]:
    return list(place.seen)


@app.task(kind="a.process", executor="process")
def in_process() -> list[str]:
    return list(place.seen)


@app.task(kind="a.awaited", executor="process")
async def awaited_in_process() -> list[str]:
    return list(place.seen)


@app.task(kind="a.held")
def held() -> int:
    return current_job().attempt


@app.task(kind="a.broken", max_attempts=1)
def broken() -> None:
    raise KeyError("a")
