"""What a worker costs that has nothing to do."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.fleet import BenchError
from bench.lines import Line, at_most, seen
from bench.machine import cpu_seconds, resident_bytes
from bench.suite import Run, case

APP = """from leasehold import App
app = App()
@app.task(kind="noop")
async def noop(i: int = 0) -> None: ...
"""


def _until_it_works(run: Run) -> None:
    deadline = time.monotonic() + 60
    with run.server.connect("bench") as look:
        while look.execute("select exists (select from workers)").fetchone() != (True,):
            if time.monotonic() > deadline:
                raise BenchError("the worker did not start within a minute")
            time.sleep(0.1)


@case("idle")
def idle(run: Run) -> list[Line]:
    """Statements per minute and memory of an idle `leasehold worker`."""
    seconds = run.seconds(60, 5)
    dsn = run.server.leasehold("bench")
    with tempfile.TemporaryDirectory(prefix="leasehold-bench-idle-") as folder:
        (Path(folder) / "benchapp.py").write_text(APP)
        command = [sys.executable, "-m", "leasehold", "worker", "benchapp:app"]
        env = {**os.environ, "LEASEHOLD_DSN": dsn}
        null = subprocess.DEVNULL
        worker = subprocess.Popen(command, cwd=folder, env=env, stdout=null, stderr=null)
        try:
            _until_it_works(run)
            time.sleep(min(10, seconds))  # until it has settled
            run.server.forget_statements()
            commits, cpu, began = run.server.commits("bench"), cpu_seconds([worker.pid]), time.monotonic()
            time.sleep(seconds)
            minutes = (time.monotonic() - began) / 60
            statements = run.server.statements("bench") / minutes
            busy = (cpu_seconds([worker.pid]) - cpu) / minutes
            time.sleep(1.5)  # the counters of transactions come late
            commits = (run.server.commits("bench") - commits) / minutes
            memory = resident_bytes(worker.pid) / 2**20
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(30)
    run.note("leasehold worker", statements=statements, commits=commits, cpu_ms=busy * 1e3, mb=memory)
    what = "idle worker"
    return [
        at_most(10, [statements], "", what=what, against="statements a minute"),
        at_most(80, [memory], "MB", what=what, against="memory"),
        seen([float(commits)], "", what=what, against="transactions a minute"),
        seen([busy * 1e3], "ms", what=what, against="CPU a minute"),
    ]
