"""Ctrl-C in two stages: the first lets the batch end and says what was done, the second ends at once."""

import os
import signal

import pytest

from leasehold.cli.interrupts import Interruptible
from tests.cli.terminal import terminal


def test_the_first_signal_is_a_wish_and_the_second_an_order():
    before = signal.getsignal(signal.SIGINT)
    with Interruptible("this batch") as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.wanted
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
