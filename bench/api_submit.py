"""`POST /jobs` against a bare FastAPI endpoint that only validates the same body.

    python bench/api_submit.py [--rounds 5] [--seconds 4] [--connections 64 256] [--tokens] [--json FILE] [--profile F]

Starts a PostgreSQL of its own (fsync and synchronous_commit on), `leasehold serve`, and the bare endpoint under the
same uvicorn settings, one process each. The rounds alternate; the load comes from a process of its own
(`http_load.py`). Each connection waits for its answer, so a few of them measure how long a commit takes, and many
measure what the server can do. `--profile` runs our server once more under cProfile and writes what it found.
"""

import argparse
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from leasehold.db.migrate import migrate
from leasehold.embedded import EmbeddedServer

ROOT = Path(__file__).parents[1]

BARE = """
import uvicorn
from fastapi import FastAPI
from leasehold.http.schemas import JobRequest

app = FastAPI()

@app.post("/jobs", status_code=202)
async def submit(job: JobRequest) -> dict[str, str]:
    return {"jobId": "018f0000-0000-7000-8000-000000000001", "jobType": job.job_type, "status": "PENDING"}

@app.get("/readyz")
async def ready() -> dict[str, str]:
    return {}

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
    started = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **env}, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
            except OSError:
                assert started.poll() is None, "the server did not start"
                assert time.monotonic() < deadline, "the server does not answer"
                time.sleep(0.05)
        yield started
    finally:
        started.terminate()
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def load(port: int, seconds: float, connections: int, token: str | None) -> dict[str, Any]:
    """One round."""
    command = [sys.executable, str(ROOT / "bench/http_load.py"), "127.0.0.1", str(port)]
    command += ["--seconds", str(seconds), "--connections", str(connections)]
    if token:
        command += ["--token", token]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    assert set(figures["statuses"]) == {"202"}, figures
    return figures


def make_token(dsn: str) -> str:
    command = [sys.executable, "-m", "leasehold", "tokens", "create", "bench", "--scope", "submit", "--json"]
    made = subprocess.run(command, env={**os.environ, "LEASEHOLD_DSN": dsn}, check=True, capture_output=True, text=True)
    return str(json.loads(made.stdout)["token"])


def cpu_of(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(dsn: str, connections: int, token: str | None, options: argparse.Namespace) -> dict[str, Any]:
    """Alternate the rounds; the figures of both."""
    ours, bare = free_port(), free_port()
    rounds: dict[str, list[dict[str, Any]]] = {"leasehold": [], "bare": []}
    with (
        process([sys.executable, "-m", "leasehold", "serve", "--port", str(ours)], ours, LEASEHOLD_DSN=dsn) as api,
        process([sys.executable, "-c", BARE.replace("PORT", str(bare))], bare) as empty,
    ):
        places = {"leasehold": (ours, api.pid), "bare": (bare, empty.pid)}
        for port, _ in places.values():
            load(port, 1.0, connections, token)
        for number in range(options.rounds):
            for name in ("bare", "leasehold") if number % 2 else ("leasehold", "bare"):
                port, pid = places[name]
                before = cpu_of(pid)
                figures = load(port, options.seconds, connections, token)
                figures["server_cpu_us"] = (cpu_of(pid) - before) / figures["answers"] * 1e6
                rounds[name].append(figures)
                print(f"  {name:10} {figures['rate']:8,.0f}/s", file=sys.stderr, flush=True)
    with psycopg.connect(dsn) as connection:
        stored = connection.execute("select count(*) from leasehold.jobs where state = 'queued'").fetchone()
    answered = sum(figures["answers"] for figures in rounds["leasehold"])
    assert stored is not None
    assert stored[0] >= answered, "every answer is a job that is queued"
    return summary(rounds, connections)


def summary(rounds: dict[str, list[dict[str, Any]]], connections: int) -> dict[str, Any]:
    found: dict[str, Any] = {"connections": connections}
    for name, figures in rounds.items():
        rates = [one["rate"] for one in figures]
        found[name] = {
            "median": statistics.median(rates),
            "least": min(rates),
            "most": max(rates),
            "p50_ms": statistics.median(one["p50_ms"] for one in figures),
            "p99_ms": statistics.median(one["p99_ms"] for one in figures),
            "server_cpu_us": statistics.median(one["server_cpu_us"] for one in figures),
        }
    found["ratio"] = found["leasehold"]["median"] / found["bare"]["median"]
    return found


def profile(dsn: str, options: argparse.Namespace) -> None:
    """Where the time of our server goes, written for pstats."""
    token = make_token(dsn) if options.tokens else None
    port = free_port()
    code = PROFILED.replace("PORT", str(port)).replace("FILE", repr(str(Path(options.profile).resolve())))
    with process([sys.executable, "-c", code], port, LEASEHOLD_DSN=dsn) as api:
        load(port, 1.0, options.connections[0], token)
        api.send_signal(signal.SIGUSR1)
        load(port, options.seconds, options.connections[0], token)
        api.send_signal(signal.SIGUSR2)
        time.sleep(1)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--connections", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--tokens", action="store_true", help="with a token on every request")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--profile", help="write a profile here instead")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="leasehold-bench-", ignore_cleanup_errors=True))
        server = stack.enter_context(EmbeddedServer(Path(folder), settings={"shared_buffers": "512MB"}))
        migrate(server.dsn("postgres"))
        if options.profile:
            profile(server.dsn("postgres"), options)
            return
        dsn = server.dsn("postgres")
        token = make_token(dsn) if options.tokens else None
        found = [measure(dsn, number, token, options) for number in options.connections]
    print(f"PostgreSQL {server.version}, Python {platform.python_version()}, medians of {options.rounds} rounds")
    print(f"{'connections':>11} {'':10}{'requests/s':>11} {'spread':>17} {'p50 ms':>8} {'p99 ms':>8} {'CPU µs':>8}")
    for one in found:
        show(one)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


def show(found: dict[str, Any]) -> None:
    for name in ("bare", "leasehold"):
        one = found[name]
        spread = f"{one['least']:,.0f} to {one['most']:,.0f}"
        rest = f"{one['p50_ms']:8.1f} {one['p99_ms']:8.1f} {one['server_cpu_us']:8.0f}"
        print(f"{found['connections']:11} {name:10}{one['median']:11,.0f} {spread:>17} {rest}")
    print(f"{found['connections']:11} POST /jobs does {found['ratio']:.0%} of a bare endpoint")


if __name__ == "__main__":
    main()
