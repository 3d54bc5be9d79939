"""`POST /jobs` against a bare FastAPI endpoint that only validates the same body.

`leasehold serve` and the bare endpoint run under the same uvicorn settings, one process each; the load comes from a
process of its own (`http_load.py`). Each connection waits for its answer, so a few of them measure how long a commit
takes, and many measure what the server can do. `python -m bench.cases.http --profile FILE` shows where the time goes.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.fleet import BenchError
from bench.lines import Line, at_least, ratios, seen
from bench.machine import cpu_seconds
from bench.server import folder, started
from bench.suite import Run, case

ROOT = Path(__file__).parents[2]

BARE = """
import uvicorn
from fastapi import FastAPI
from leasehold.http.schemas import JobRequest

app = FastAPI()

@app.post("/jobs", status_code=202)
async def submit(job: JobRequest) -> dict[str, str]:
    return {"jobId": "018f0000-0000-7000-8000-000000000001", "jobType": job.job_type, "status": "PENDING"}

uvicorn.run(app, port=PORT, http="httptools", loop="uvloop", ws="none", access_log=False, proxy_headers=False,
    server_header=False, log_config=None, timeout_keep_alive=30, backlog=2048)
"""

PROFILED = """
import cProfile, signal, time
from leasehold.cli import main
profile = cProfile.Profile(time.thread_time)
signal.signal(signal.SIGUSR1, lambda *_: profile.enable())
def stop(*_):
    profile.disable()
    profile.dump_stats(FILE)
signal.signal(signal.SIGUSR2, stop)
main(["serve", "--port", "PORT"])
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def process(command: list[str], port: int, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server, once it answers."""
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **env}, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise BenchError(f"{' '.join(command[:4])} does not answer") from None
                time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def load(port: int, seconds: float, connections: int) -> dict[str, Any]:
    """One round of requests."""
    command = [sys.executable, "-m", "bench.http_load", "127.0.0.1", str(port)]
    command += ["--seconds", str(seconds), "--connections", str(connections)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    if set(figures["statuses"]) != {"202"}:
        raise BenchError(f"POST /jobs answered {figures['statuses']}")
    return figures


def serving(port: int) -> list[str]:
    return [sys.executable, "-m", "leasehold", "serve", "--port", str(port)]


@case("http")
def http(run: Run) -> list[Line]:
    """Requests per second of `POST /jobs`, as a share of a bare endpoint that only validates the same body."""
    seconds = run.seconds(3, 0.5)
    lines = []
    for connections in (64, 256) if not run.options.small else (16,):
        rates = _rates(run, seconds, connections)
        what = f"POST /jobs, {connections} connections"
        lines.append(seen(rates["leasehold"], "/s", what=what))
        lines.append(
            at_least(0.7, ratios(rates["leasehold"], rates["bare"]), "%", what=what, against="a bare endpoint")
        )
    return lines


def _rates(run: Run, seconds: float, connections: int) -> dict[str, list[float]]:
    dsn = run.server.leasehold("bench")
    ours, bare = free_port(), free_port()
    rates: dict[str, list[float]] = {"leasehold": [], "bare": []}
    with (
        process(serving(ours), ours, LEASEHOLD_DSN=dsn) as api,
        process([sys.executable, "-c", BARE.replace("PORT", str(bare))], bare) as empty,
    ):
        places = {"leasehold": (ours, api.pid), "bare": (bare, empty.pid)}
        for port, _ in places.values():
            load(port, min(1.0, seconds), connections)
        answered = 0
        for _, name in run.in_turn(list(places)):
            port, pid = places[name]
            before = cpu_seconds([pid])
            figures = load(port, seconds, connections)
            rates[name].append(figures["rate"])
            answered += figures["answers"] if name == "leasehold" else 0
            cost = (cpu_seconds([pid]) - before) / figures["answers"] * 1e6
            run.note(
                f"{name}, {connections}",
                rate=figures["rate"],
                p50_ms=figures["p50_ms"],
                p99_ms=figures["p99_ms"],
                server_us=cost,
            )
    with run.server.connect("bench") as look:
        stored = look.execute("select count(*) from jobs where state = 'queued'").fetchone()
    if stored is None or stored[0] < answered:
        raise BenchError(f"{answered:,} submissions were answered, {stored} are queued")
    return rates


def main() -> None:
    """Where the time of our server goes, written for pstats."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--profile", type=Path, required=True, metavar="FILE")
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    port = free_port()
    code = PROFILED.replace("PORT", str(port)).replace("FILE", repr(str(options.profile.resolve())))
    with folder() as place, started(place) as server:
        dsn = server.leasehold("bench")
        with process([sys.executable, "-c", code], port, LEASEHOLD_DSN=dsn) as api:
            load(port, 1.0, 64)
            api.send_signal(signal.SIGUSR1)
            load(port, options.seconds, 64)
            api.send_signal(signal.SIGUSR2)
            time.sleep(1)


if __name__ == "__main__":
    main()
