"""A job that is to run alone holds the others back while it waits or runs, and no longer."""

from collections import deque
from pathlib import Path
from uuid import uuid4

import pytest

from leasehold.db.store import ClaimedJob
from leasehold.worker.journal import Place
from leasehold.worker.solitude import Solitude


class Slots:
    """What a worker has in hand, and what it gave back."""

    def __init__(self) -> None:
        self.waiting: deque[ClaimedJob] = deque()
        self.running: dict[ClaimedJob, None] = {}
        self.given: list[ClaimedJob] = []
        self.solitude = Solitude(Place("postgresql://x/db", "s"), self.given.append, self.waiting, self.running)

    def wanted(self) -> bool:
        return self.solitude.wanted

    def suspect(self) -> ClaimedJob:
        job = _job()
        self.solitude.suspects[job.id] = True
        self.waiting.append(job)
        return job


def _job() -> ClaimedJob:
    return ClaimedJob(
        id=str(uuid4()), attempt=1, claim_id="c", kind="work", queue="default", payload="{}", retry_count=0,
        max_attempts=3, lease_seconds=30.0, priority=0,
    )  # fmt: skip


@pytest.fixture
def slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slots:
    monkeypatch.setenv("LEASEHOLD_RUN_DIR", str(tmp_path))
    return Slots()


def test_a_suspect_that_is_lost_while_it_waits_holds_back_no_claim(slots: Slots) -> None:
    slots.running[_job()] = None
    other = _job()
    slots.waiting.append(other)
    suspect = slots.suspect()
    assert slots.solitude.holds_back(running=True)
    assert slots.wanted()
    assert slots.given == [other]
    slots.waiting.remove(suspect)
    assert not slots.wanted()


def test_a_suspect_that_is_dropped_instead_of_started_holds_back_no_claim(slots: Slots) -> None:
    suspect = slots.suspect()
    assert not slots.solitude.holds_back(running=False)
    assert slots.waiting.popleft() is suspect
    assert not slots.wanted()
    assert not slots.solitude.holds_back(running=False)


def test_a_job_runs_alone_to_its_end_though_the_list_has_changed(slots: Slots) -> None:
    suspect = slots.suspect()
    assert not slots.solitude.holds_back(running=False)
    slots.running[slots.waiting.popleft()] = None
    slots.solitude.suspects = {}
    slots.waiting.append(_job())
    assert slots.wanted()
    assert slots.solitude.holds_back(running=True)
    del slots.running[suspect]
    assert not slots.wanted()
    assert not slots.solitude.holds_back(running=False)
    assert not slots.solitude.concerned
