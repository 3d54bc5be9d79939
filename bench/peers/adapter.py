"""What every adapter in Python shares. An adapter is a script with these commands:

    schema               make the tables in $DSN
    bulk N               enqueue N jobs by the best bulk call, 1,000 a call       prints {"s": seconds}
    single N             enqueue N jobs one at a time                             prints {"s": seconds}
    paced N GAP          enqueue one job every GAP seconds                        prints {"s": seconds}
    steady RATE SECONDS  enqueue RATE jobs a second, 100 at a time                prints {"s": seconds, "n": jobs}
    worker               work until killed, as $SLOTS, $PREFETCH and $MODE say

The handler of every peer calls hit(t): it counts the job in a file of 32 bytes that it shares with the suite, and notes
how long ago t was, if there is one.
"""

import asyncio
import json
import mmap
import os
import sys
import time
from pathlib import Path

DSN = os.environ["DSN"]
SLOTS = int(os.environ.get("SLOTS", "10"))
PREFETCH = int(os.environ.get("PREFETCH", "0"))
MODE = os.environ.get("MODE", "")
STATS = os.environ.get("STATS")

# Count, nanoseconds of the first and of the last, and 1 when ready, 2 when released.
_shared = None
_delays = None
if STATS:
    with Path(STATS).open("r+b") as _file:
        _shared = memoryview(mmap.mmap(_file.fileno(), 32)).cast("Q")
    _delays = Path(STATS + ".delays").open("a", buffering=1)  # noqa: SIM115 (open until the process ends)


def payload(i, t=0.0):
    """What a job carries: about 45 bytes of JSON."""
    return {"i": i, "t": t, "to": "someone@example.com"}


def hit(t=0.0):
    """A job has started."""
    now = time.time_ns()
    if not _shared[0]:
        _shared[1] = now
    _shared[0] += 1
    _shared[2] = now
    if t:
        _delays.write(f"{now / 1e9 - t}\n")


def ready():
    """Say that imports and connections are done, and wait for the start."""
    _shared[3] = 1
    while _shared[3] != 2:
        time.sleep(0.002)


def batches(values, size=1000):
    """The values, some at a time."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


async def _paced(one, client, count, gap):
    following = time.perf_counter()
    for i in range(count):
        await one(client, payload(i, time.time()))
        following += gap
        await asyncio.sleep(max(0, following - time.perf_counter()))


async def _steady(bulk, client, rate, seconds, size=100):
    """A batch every size / rate seconds; one job in 20 carries the time, but not in the first second."""
    began, sent = time.perf_counter(), 0
    while sent < rate * seconds:
        await asyncio.sleep(max(0.0, began + sent / rate - time.perf_counter()))
        now = time.time() if sent >= min(rate, rate * seconds / 2) else 0.0
        await bulk(client, [payload(i, 0.0 if i % 20 else now) for i in range(sent, sent + size)])
        sent += size
    return sent


async def _run(schema, client, bulk, one, worker):
    command, *args = sys.argv[1:]
    if command == "schema":
        return await schema()
    if command == "worker":
        return await worker()
    said = {}
    async with client() as connected:
        if command != "bulk":
            await one(connected, payload(-1))  # whatever is made at the first call is made now
        jobs = [payload(i) for i in range(int(float(args[0])))] if command in ("bulk", "single") else []
        began = time.perf_counter()
        match command:
            case "bulk":
                await bulk(connected, jobs)
            case "single":
                for job in jobs:
                    await one(connected, job)
            case "paced":
                await _paced(one, connected, int(args[0]), float(args[1]))
            case "steady":
                said["n"] = await _steady(bulk, connected, float(args[0]), float(args[1])) + 1
        said["s"] = time.perf_counter() - began
        print(json.dumps(said), flush=True)
    return None


def main(*, schema, client, bulk, one, worker):
    """Do as the command line says: client() is an async context manager, bulk(c, payloads), one(c, payload)."""
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        asyncio.run(_run(schema, client, bulk, one, worker))
    else:
        uvloop.run(_run(schema, client, bulk, one, worker))
