"""Ctrl-C in two stages: the first lets the batch end and says what was done, the second ends at once."""

import os
import signal
import subprocess
import sys

import pytest

from leasehold.cli.console import interruptible
from tests.cli.terminal import terminal


def test_the_first_signal_is_a_wish_and_the_second_an_order():
    before = signal.getsignal(signal.SIGINT)
    with interruptible("this batch") as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.is_set()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_bulk_change_that_is_interrupted_ends_after_its_batch_with_130(dsn, sql):
    sql("select enqueue('BULK', queue => 'bulk') from generate_series(1, 3000)")
    # So slow that there is a batch under way when the key is pressed.
    body = "begin perform pg_sleep(0.002); return null; end"
    sql(f"create function slow() returns trigger language plpgsql as $$ {body} $$")
    sql("create trigger slow after update on jobs for each statement execute function slow()")
    with terminal("jobs", "cancel", "--kind", "BULK", "--yes", LEASEHOLD_DSN=dsn, columns=120) as screen:
        screen.expect("cancel")
        screen.expect("500/3000")
        screen.interrupt()
        screen.expect("stopping after this batch; once more to stop at once")
        assert screen.end() == 130
        ((cancelled,),) = sql("select count(*) from jobs where state = 'dead'")
        assert 500 <= cancelled < 3000
        assert f"cancelled {cancelled:,} jobs" in screen.text


BEFORE_HANDLERS = """
import os, signal
from leasehold import App
from leasehold.supervise.signals import Signals

app = App()

@app.task(kind="nothing")
def nothing() -> None: ...

enter = Signals.__enter__

def interrupted(self):
    os.kill(os.getpid(), signal.SIGINT)
    return enter(self)

Signals.__enter__ = interrupted
"""
DURING_IMPORTS = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from leasehold.cli import main
main(["--help"])
"""


def test_ctrl_c_just_before_a_worker_handles_signals_ends_it_with_130(dsn, tmp_path):
    (tmp_path / "mytasks.py").write_text(BEFORE_HANDLERS)
    command = [sys.executable, "-m", "leasehold", "worker", "mytasks:app"]
    env = {**os.environ, "LEASEHOLD_DSN": dsn}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert "CRITICAL" not in done.stderr


def test_ctrl_c_while_a_command_is_imported_ends_it_with_130_and_one_line():
    done = subprocess.run(
        [sys.executable, "-c", DURING_IMPORTS], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
