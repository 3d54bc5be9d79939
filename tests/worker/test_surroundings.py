"""What a task changes or leaves behind, in the worker or in its process, is none of the next job's in a process."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.worker import process_tasks as tasks
from tests.worker.processes import Pool


async def test_a_default_timeout_of_sockets_that_a_task_has_set_in_the_worker_is_none_of_a_process(pool: Pool) -> None:
    socket.setdefaulttimeout(5)
    try:
        assert await pool.value(tasks.later, "x" * 500_000) == "x" * 500_000 + " p.later"
        assert await pool.value(tasks.pid, 0.1)
    finally:
        socket.setdefaulttimeout(None)


@pytest.mark.parametrize("daemon", [True, False])
async def test_a_thread_that_a_job_left_behind_ends_no_other_job(pool: Pool, daemon: bool, tmp_path: Path) -> None:
    before = await pool.value(tasks.pid)
    assert await pool.value(tasks.leave_exit, daemon, tmp_path / "go") == before
    after = await pool.value(tasks.touch, tmp_path / "go")
    assert after != before
    assert await pool.value(tasks.pid) == after


MEDDLING = """
import resource, tempfile
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.signal(signal.SIGUSR2, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGALRM])
os.chdir(tempfile.gettempdir())
os.umask(0o777)
os.environ.update(PYTHONHOME="/none", MEDDLED="1")
os.environ.pop("PATH")
sys.path.clear()
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, hard))
"""


async def test_what_a_job_changes_in_its_process_is_put_back_before_the_next_one(pool: Pool) -> None:
    before, process = await pool.value(tasks.look), await pool.value(tasks.pid)
    assert before["code"] == 1
    assert await pool.value(tasks.meddle, MEDDLING + "signal.setitimer(signal.ITIMER_REAL, 60)") == process
    assert await pool.value(tasks.look) == before
    assert await pool.value(tasks.pid) == process


async def test_what_a_task_changes_in_the_worker_is_not_passed_on_to_processes(pool: Pool) -> None:
    """In a program of its own: not all of it could be put back in this one."""
    before = await pool.value(tasks.look)
    code = f"""
        import asyncio, json, os, signal, sys
        from tests.worker import process_tasks as tasks
        from tests.worker.processes import Pool
        async def seen():
            pool = Pool()
            exec({MEDDLING!r})
            try:
                return await pool.value(tasks.look)
            finally:
                await pool.executor.close()
        print(json.dumps(asyncio.run(seen())))
    """
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(code), stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": "."}
    )
    seen = json.loads((await program.communicate())[0])
    for name in ("folder", "umask", "limits", "mask", "handlers", "code", "nice"):
        assert seen[name] == before[name], name
    assert "MEDDLED" not in seen["env"]


@pytest.mark.parametrize(
    "code",
    [
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (99, 99))",
        "subprocess.Popen(['sleep', '600'])",
    ],
    ids=["a hard limit", "a program"],
)
async def test_a_process_in_which_a_job_left_what_cannot_be_put_back_gets_no_other(pool: Pool, code: str) -> None:
    assert await pool.value(tasks.meddle, code) not in [await pool.value(tasks.pid) for _ in range(2)]
