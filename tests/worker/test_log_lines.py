"""What a queue, a task or an error is called cannot add lines to the log, nor control a terminal."""

import logging
from uuid import uuid4

import pytest

from leasehold.db.store import ClaimedJob
from leasehold.outcome import Cancelled, Error, Failed
from leasehold.worker import log_lines

_EVIL = "mail\nERROR forged\x1b[2J"

_JOB = ClaimedJob(
    id=str(uuid4()), attempt=1, claim_id="c", kind=_EVIL, queue=_EVIL, payload="{}", retry_count=0, max_attempts=1,
    lease_seconds=30.0, priority=0,
)  # fmt: skip


def test_names_stay_in_their_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    error = Error(type=_EVIL, message=_EVIL, traceback="")
    log_lines.lost(_EVIL, _JOB, started=False)
    log_lines.refused(_EVIL, _JOB)
    log_lines.reported(_EVIL, _JOB, Cancelled(_EVIL), "cancelled")
    log_lines.reported(_EVIL, _JOB, Failed(error=error, retry_after=1.0), "retry")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    assert all("\\nERROR forged\\x1b[2J" in line for line in said)
    assert all(line.isprintable() for line in said)


def test_a_traceback_keeps_its_lines_and_controls_no_terminal(caplog: pytest.LogCaptureFixture) -> None:
    error = Error(type="E", message="m", traceback="one\n\ttwo \x1b[2J\x07\r\n")
    log_lines.reported("w", _JOB, Failed(error=error, retry_after=None), "dead")
    [record] = caplog.records
    assert record.getMessage().endswith("\none\n\ttwo \\x1b[2J\\x07")
