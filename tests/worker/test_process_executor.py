"""What a process does with one job, and what becomes of the process: real ones, real signals, no database."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from faults.waiting import auntil
from leasehold import App, ConfigError, Task
from leasehold.context import MAX_LINES, JobContext
from leasehold.outcome import Failed, Snoozed, Success
from leasehold.worker.executors import TimedOut, check_tasks
from leasehold.worker.process import ProcessDied
from tests.timing import bound
from tests.worker import process_tasks as tasks
from tests.worker.processes import Pool, alive, children, stands_still


async def test_arguments_and_results_of_rich_types_make_the_journey(pool: Pool) -> None:
    sent = datetime(2026, 2, 28, 12, tzinfo=UTC)
    parcel = tasks.Parcel(Decimal("1.50"), tasks.Colour.RED, sent, b"\x00\xff\n", {"ä\u2028🦊": (1, 2)})
    owner = UUID(int=7)
    back, same_owner, tags = await pool.value(tasks.parcel, parcel, owner, {"a", "b"})
    assert back == tasks.Parcel(
        Decimal("3.00"), tasks.Colour.RED, sent.replace(month=3, day=1), b"\n\xff\x00", parcel.parts
    )
    assert (same_owner, tags) == (owner, {"a", "b"})


async def test_an_async_def_runs_in_a_process_and_knows_its_job(pool: Pool) -> None:
    assert await pool.value(tasks.later, "x" * 500_000) == "x" * 500_000 + " p.later"


async def test_a_task_in_a_process_knows_its_job_and_is_heard(pool: Pool) -> None:
    job, context = pool.job(tasks.who)
    outcome = await pool.executor.run(tasks.who, job, context)
    assert isinstance(outcome, Success)
    assert tasks.who.result.decode(outcome.result) == {
        "id": str(job.id), "kind": "p.who", "queue": "q", "attempt": 4, "retry_count": 2, "max_attempts": 5,
    }  # fmt: skip
    assert [(level, text) for _, level, text in context.take_lines()] == [("INFO", "said so")]
    assert context.take_progress() == (0.5, "half")


@pytest.mark.parametrize("task", [tasks.fail, tasks.afail])
async def test_an_exception_carries_the_traceback_of_the_task_and_nothing_of_ours(
    pool: Pool, task: Task[[], None]
) -> None:
    failed = await pool.failure(task)
    assert (failed.error.type, failed.error.message) == ("LookupError", "no luck")
    assert 'raise LookupError("no luck")' in failed.error.traceback
    assert f"in {task.__name__}" in failed.error.traceback.split("File")[1]
    assert "leasehold/worker" not in failed.error.traceback
    assert "asyncio" not in failed.error.traceback


async def test_the_retry_policy_is_asked_where_the_exception_lives(pool: Pool) -> None:
    assert (await pool.failure(tasks.fail)).retry_after == 7
    assert (await pool.failure(tasks.afail)).fatal
    assert (await pool.failure(tasks.picky, True)).retry_after == 43
    assert (await pool.failure(tasks.picky, False)).fatal
    assert await pool.run(tasks.snooze) == Snoozed(12)
    assert (await pool.failure(tasks.retry)).retry_after == 13


async def test_a_payload_that_does_not_fit_is_a_failure(pool: Pool) -> None:
    job, context = pool.job(tasks.pid, 1)
    object.__setattr__(job, "payload", '{"seconds": "many"}')
    outcome = await pool.executor.run(tasks.pid, job, context)
    assert isinstance(outcome, Failed)
    assert (outcome.error.type, outcome.fatal) == ("leasehold.errors.ArgumentsDoNotFit", True)


async def test_sys_exit_fails_the_job_and_leaves_the_process(pool: Pool) -> None:
    before = await pool.value(tasks.pid)
    failed = await pool.failure(tasks.sysexit)
    assert failed.error.message == "the task raised SystemExit(4)"
    assert "sys.exit(4)" in failed.error.traceback
    assert await pool.value(tasks.pid) == before


async def test_the_hook_on_error_sees_the_exception_in_the_process(pool: Pool, tmp_path: Path) -> None:
    await pool.run(tasks.hooked, tmp_path / "note")
    assert (tmp_path / "note").read_text()


async def test_what_a_task_prints_goes_to_standard_error(pool: Pool, capfd: pytest.CaptureFixture[str]) -> None:
    await pool.run(tasks.say, "hello")
    out, err = capfd.readouterr()
    assert (out, "out hello\n" in err, "err hello\n" in err) == ("", True, True)


async def test_the_last_line_that_a_task_logs_before_it_crashes_is_written(
    pool: Pool, capfd: pytest.CaptureFixture[str]
) -> None:
    for number in range(5):
        with pytest.raises(ProcessDied):
            await pool.run(tasks.meddle, f"import logging; logging.error('last words %d', {number}); os._exit(3)")
    said = capfd.readouterr().err
    assert [number for number in range(5) if f"last words {number}" not in said] == []


async def test_a_talkative_task_does_not_flood_the_worker(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    job, context = pool.job(tasks.chatty)
    reported: list[float] = []
    lines: list[object] = []
    monkeypatch.setattr(JobContext, "progress", lambda _self, fraction, _note: reported.append(fraction))
    monkeypatch.setattr(JobContext, "capture", lambda _self, line: lines.append(line))
    assert await pool.executor.run(tasks.chatty, job, context) == Success(None)
    assert reported == sorted(reported)
    assert len(reported) < 1000
    assert len(lines) == MAX_LINES + 1


# -- the processes


async def test_two_hundred_jobs_go_through_two_processes(pool: Pool) -> None:
    pids = await asyncio.gather(*(pool.value(tasks.pid, 0.002) for _ in range(200)))
    assert len(set(pids)) == 2
    assert os.getpid() not in pids
    assert len(children()) == 2


async def test_the_time_that_a_process_takes_to_start_is_not_the_tasks(pool: Pool) -> None:
    """Importing alone takes longer than this task may."""
    assert await pool.value(tasks.hasty)


async def test_a_process_has_no_socket_of_the_worker_but_its_own(pool: Pool) -> None:
    with socket.socket() as listening:
        listening.set_inheritable(True)
        assert await pool.value(tasks.sockets) == {"sockets": 1, "inheritable": 0}


async def test_interrupt_and_terminate_are_for_the_worker_and_for_programs_of_the_task(pool: Pool) -> None:
    assert await pool.value(tasks.signals) == [True, True]


async def test_an_idle_process_exits_in_good_order_when_the_worker_stops(pool: Pool, tmp_path: Path) -> None:
    await pool.run(tasks.at_exit, tmp_path / "bye")
    await pool.executor.close()
    assert (tmp_path / "bye").read_text() == "bye"


async def test_a_process_whose_worker_is_gone_ends_by_itself_whatever_its_task_does(pool: Pool, tmp_path: Path) -> None:
    """The kernel's signal apart: its end of the socket is enough."""
    running = asyncio.create_task(pool.run(tasks.endless, tmp_path))
    await auntil((tmp_path / "beat").exists)
    [child] = pool.executor._children
    child._socket.shutdown(socket.SHUT_RDWR)
    assert await child.wait(60)
    with pytest.raises(ProcessDied, match="killed by SIGKILL"):
        await running


# -- crashes


@pytest.mark.parametrize(
    ("task", "args", "how"),
    [
        (tasks.segfault, (), "killed by SIGSEGV"),
        (tasks.leave, (3,), "exit code 3"),
        (tasks.leave, (0,), "exit code 0"),
        (tasks.kill, (), "killed by SIGKILL (by a person, or by the kernel for want of memory)"),
    ],
)
async def test_a_crash_says_how_and_the_next_job_gets_a_new_process(
    pool: Pool, task: Task[..., Any], args: tuple[int, ...], how: str
) -> None:
    before = await pool.value(tasks.pid)
    neighbour = asyncio.create_task(pool.value(tasks.pid, 1))
    job, context = pool.job(task, *args)
    with pytest.raises(ProcessDied) as died:
        await pool.executor.run(task, job, context)
    assert str(died.value) == f"the process of job {job.id} died: {how}"
    assert await pool.value(tasks.pid) != before
    assert await neighbour


async def test_a_death_is_noticed_although_a_fork_keeps_the_socket(pool: Pool, tmp_path: Path) -> None:
    await pool.run(tasks.pid)
    asked = time.monotonic()
    try:
        with pytest.raises(ProcessDied, match="exit code 5"):
            await pool.run(tasks.fork_and_die, tmp_path / "fork")
        assert time.monotonic() - asked < bound(10)  # the fork has 300
    finally:
        os.kill(int((tmp_path / "fork").read_text()), signal.SIGKILL)


async def test_a_process_killed_at_work_fails_its_job_and_one_killed_idle_fails_none(pool: Pool) -> None:
    busy = asyncio.create_task(pool.run(tasks.pid, 600))
    await auntil(lambda: len(children()) == 1)
    idle = await pool.value(tasks.pid)
    [pid] = [int(line.split()[0]) for line in children() if int(line.split()[0]) != idle]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ProcessDied, match="killed by SIGKILL"):
        await asyncio.wait_for(busy, 60)
    os.kill(idle, signal.SIGKILL)
    assert await pool.value(tasks.pid) != idle  # though its end was not noticed yet


async def test_garbage_on_the_socket_is_a_crash_and_no_hang(pool: Pool) -> None:
    for what in tasks.GARBAGE:
        with pytest.raises(ProcessDied, match="it wrote something that is no message"):
            await asyncio.wait_for(pool.run(tasks.garbage, what), 60)
    assert await pool.value(tasks.pid)


async def test_garbage_that_an_earlier_job_left_behind_fails_no_other(pool: Pool, tmp_path: Path) -> None:
    spoilt = await pool.value(tasks.late_garbage, tmp_path / "written")
    await auntil((tmp_path / "written").exists)
    assert await pool.value(tasks.pid) != spoilt


async def test_a_fork_that_comes_back_from_the_function_answers_nothing(pool: Pool) -> None:
    first = await pool.value(tasks.come_back_twice)
    assert await pool.value(tasks.pid) != first  # the fork is its child


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules, known before the pool is made."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


async def test_a_module_that_the_process_cannot_import_fails_the_job_with_the_reason(
    importable: Path, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "from leasehold import App\napp = App('postgresql://h/d')\n@app.task(executor='process')\ndef f() -> None: ..."
    )
    (importable / "shortlived.py").write_text(source)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    import shortlived  # type: ignore[import-not-found]  # noqa: PLC0415

    monkeypatch.delitem(sys.modules, "shortlived")
    (importable / "shortlived.py").write_text("raise OSError('the licence server is away')")
    with pytest.raises(ProcessDied, match=r"cannot run shortlived\.f: OSError: the licence server is away"):
        await pool.run(shortlived.f)


# -- time


async def test_at_its_timeout_a_process_is_killed_with_the_programs_it_started(pool: Pool, tmp_path: Path) -> None:
    await asyncio.gather(pool.run(tasks.pid, 0.1), pool.run(tasks.pid, 0.1))
    neighbour = asyncio.create_task(pool.value(tasks.pid, 1))
    asked = time.monotonic()
    with pytest.raises(TimedOut, match=r"longer than its timeout of 0\.5 s"):
        await pool.run(tasks.slow, tmp_path)
    assert 0.5 <= time.monotonic() - asked < bound(3)
    assert not alive(int((tmp_path / "pid").read_text()))
    await stands_still(tmp_path / "program")
    await stands_still(tmp_path / "beat")
    assert await neighbour


async def test_cancelled_it_kills_the_process_at_once(pool: Pool, tmp_path: Path) -> None:
    running = asyncio.create_task(pool.run(tasks.endless, tmp_path))
    await auntil((tmp_path / "beat").exists)
    running.cancel()
    asked = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert time.monotonic() - asked < bound(2)
    assert not alive(int((tmp_path / "pid").read_text()))
    assert children() == []


async def test_cancelled_while_the_process_starts_nothing_is_left(pool: Pool) -> None:
    running = asyncio.create_task(pool.run(tasks.pid))
    await auntil(children)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert children() == []


# -- memory


@pytest.mark.parametrize("how", ["blocks", "crumbs"])
async def test_beyond_its_memory_a_task_fails_and_its_process_is_replaced(pool: Pool, how: str) -> None:
    before = await pool.value(tasks.modest)
    failed = await pool.failure(tasks.eat, how)
    assert failed.error.type == "MemoryError"
    assert failed.error.message == f"more than the {tasks.CAP:,} bytes that p.eat may allocate"
    assert await pool.value(tasks.pid) != before


async def test_shared_mappings_are_bounded_too_with_a_gigabyte_for_what_is_only_reserved(pool: Pool) -> None:
    mapped = await pool.value(tasks.share)
    assert tasks.CAP < mapped <= tasks.CAP + 1024 * tasks.MB


async def test_the_cap_of_one_task_is_none_for_another_in_the_same_process(pool: Pool) -> None:
    assert await pool.value(tasks.modest) == await pool.value(tasks.large)


# -- what cannot run in a process


def _local(app: App) -> None:
    @app.task(kind="inner", executor="process")
    def inner() -> None: ...


def _in_a_script(app: App) -> None:
    def script() -> None: ...

    script.__module__, script.__qualname__ = "__main__", "script"
    app.task(kind="script", executor="process")(script)


def _under_another_name(app: App) -> None:
    app.task(kind="deep", executor="process")(tasks.deeper)


def _twice(app: App) -> None:
    app.task(kind="other", executor="process")(tasks.pid.function)


@pytest.mark.parametrize(
    ("register", "says"),
    [
        (
            _local,
            r"inner: a process cannot import .*_local\.<locals>\.inner \(define the task at the top of its module",
        ),
        (
            _in_a_script,
            r"script: a process cannot import __main__\.script \(move the task from the script into a module",
        ),
        (_under_another_name, r"deep: .*deeper is a function, no task \(keep the task under the name of its function"),
        (_twice, r"other: .*that is p\.pid \(one function, one kind"),
    ],
)
def test_a_task_that_a_process_cannot_find_is_refused_by_name_and_with_the_cure(
    register: Callable[[App], None], says: str
) -> None:
    app = App("postgresql://127.0.0.1:1/none")
    register(app)
    with pytest.raises(ConfigError, match=says):
        check_tasks(app.tasks.values())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"memory": 2**28}, "the memory of a thread cannot be capped"),
        ({"memory": 5, "executor": "process"}, "memory 5 must be a number of bytes, at least"),
        ({"executor": "loop"}, "'thread' and 'process' can"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        App("postgresql://127.0.0.1:1/none").task(**options)(tasks.deeper)
