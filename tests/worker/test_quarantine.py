"""A job that is to run alone holds the others back while it waits or runs, and no longer."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from leasehold.db.store import ClaimedJob
from leasehold.worker.crash_recovery import JournalFolder
from leasehold.worker.finisher import Outbox
from leasehold.worker.runner import Slots


def _job() -> ClaimedJob:
    return ClaimedJob(
        id=str(uuid4()), attempt=1, claim_id="c", kind="work", queue="default", payload="{}", retry_count=0,
        max_attempts=3, lease_seconds=30.0, priority=0,
    )  # fmt: skip


@pytest.fixture
async def outbox() -> Outbox:
    return Outbox()


@pytest.fixture
async def slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outbox: Outbox) -> Slots:
    monkeypatch.setenv("LEASEHOLD_RUN_DIR", str(tmp_path))
    return Slots(10, 0, outbox, JournalFolder("postgresql://x/db", "s"))


def suspected(slots: Slots) -> ClaimedJob:
    """A job that waits, and is to run alone."""
    job = _job()
    slots.suspects[job.id] = True
    slots.waiting.append(job)
    return job


def run(slots: Slots, job: ClaimedJob) -> None:
    attempt: Any = None
    slots.running[job] = attempt


async def test_a_suspect_that_another_worker_has_found_is_run_alone(slots: Slots) -> None:
    job, other = _job(), _job()
    job.attempt = 3
    folder = JournalFolder("postgresql://x/db", "s")
    journal = folder.open("another worker", 1)
    assert journal is not None
    journal.close(orderly=True)
    for _ in range(2):  # two deaths
        folder.suspect([job.id])
    slots.add([other, job])
    assert not slots.hold_back()
    assert slots.alone is job


async def test_a_job_that_is_run_alone_is_logged_once_as_soon_as_others_wait_for_it(
    slots: Slots, caplog: pytest.LogCaptureFixture
) -> None:
    other = _job()
    run(slots, other)
    suspect = suspected(slots)
    assert slots.hold_back()
    assert slots.hold_back()
    del slots.running[other]
    assert not slots.hold_back()
    [line] = [record.getMessage() for record in caplog.records]
    assert f"job {suspect.id} (work): attempt 1 is run alone" in line
    assert "it was running when two workers died" in line


async def test_a_suspect_that_is_lost_while_it_waits_holds_back_no_claim(slots: Slots, outbox: Outbox) -> None:
    run(slots, _job())
    other = _job()
    slots.waiting.append(other)
    suspect = suspected(slots)
    assert slots.hold_back()
    assert slots.room == 0
    assert [job for job, _, _ in await outbox.take()] == [other]
    slots.waiting.remove(suspect)
    assert slots.room > 0


async def test_a_suspect_that_is_dropped_instead_of_started_holds_back_no_claim(slots: Slots) -> None:
    suspect = suspected(slots)
    assert not slots.hold_back()
    assert slots.waiting.popleft() is suspect
    assert slots.room > 0
    assert not slots.hold_back()


async def test_a_job_runs_alone_to_its_end_though_the_list_has_changed(slots: Slots) -> None:
    suspect = suspected(slots)
    assert not slots.hold_back()
    run(slots, slots.waiting.popleft())
    slots.suspects = {}
    slots.waiting.append(_job())
    assert slots.room == 0
    assert slots.hold_back()
    del slots.running[suspect]
    assert slots.room > 0
    assert not slots.hold_back()
    assert slots.alone is None
