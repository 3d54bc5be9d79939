"""A folder for journals that is full, broken or another's costs no outcome, and leaves no file open."""

import asyncio
import os
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from faults.waiting import auntil
from leasehold.db.connections.outage import Outage
from leasehold.db.store import Token
from leasehold.telemetry import Telemetry
from leasehold.upkeep.loop import Ports
from leasehold.worker.crash_recovery import CrashRecovery, Death, Journal, JournalFolder


def begin(journal: Journal, job: str) -> int:
    """Enter a job as the runner does; return its offset."""
    place = journal.free.pop()
    journal.map[place : place + 36] = job.encode()
    return place


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEASEHOLD_RUN_DIR", str(tmp_path))
    return tmp_path / f"leasehold-{os.getuid()}"


@pytest.fixture
def place(parent: Path) -> JournalFolder:
    place = JournalFolder("postgresql://x/db", "s")
    journal = place.open("host:1:ab", 2)
    assert journal is not None
    journal.close(orderly=True)
    return place


def test_a_suspect_is_counted_at_each_death_and_forgotten_after_a_day(place: JournalFolder, parent: Path) -> None:
    jobs = [str(uuid4()) for _ in range(3)]
    place.suspect(jobs)
    place.suspect(jobs[1:])
    assert place.suspects() == {jobs[0]: False, jobs[1]: True, jobs[2]: True}
    place.clear(jobs[1])
    place.clear(jobs[1])
    [old] = parent.glob(f"*/{jobs[2]}.*")
    os.utime(old, (0, 0))
    assert place.suspects() == {jobs[0]: False}
    assert not old.exists()


def test_a_suspect_for_which_there_is_no_room_is_survived(place: JournalFolder) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        place.suspect({str(uuid4())})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not any(place.suspects().values())


def test_what_is_in_a_broken_journal_is_no_job(place: JournalFolder, parent: Path) -> None:
    [folder] = parent.iterdir()
    (folder / "host:2:ab.journal").write_bytes(b"../../../../etc/passwd".ljust(48, b"\0") + b"\xff" * 48 + b"abc")
    assert [death.running for death in place.deaths()] == [set()]
    assert place.suspects() == {}


def test_a_folder_that_is_a_link_is_not_used(parent: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    parent.symlink_to(elsewhere)
    place = JournalFolder("postgresql://x/db", "s")
    assert place.open("host:1:ab", 2) is None
    place.suspect({str(uuid4())})
    assert list(place.deaths()) == []
    assert place.suspects() == {}
    assert list(elsewhere.iterdir()) == []


def test_a_journal_has_its_room_on_the_disk_and_a_failed_one_leaves_nothing(
    place: JournalFolder, parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [folder] = parent.iterdir()
    journal = place.open("host:2:ab", 1000)
    assert journal is not None
    assert (folder / "host:2:ab.journal").stat().st_blocks * 512 >= 1000 * 48
    journal.close(orderly=True)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert place.open("host:3:ab", 2) is None
    assert list(folder.glob("*.journal")) == []


def test_a_death_that_was_not_cleared_up_is_left_to_another_worker(place: JournalFolder) -> None:
    journal = place.open("host:2:cd", 2)
    assert journal is not None
    journal.close(orderly=False)
    other = JournalFolder("postgresql://x/db", "s")
    deaths = place.deaths()
    assert next(deaths) == Death("host:2:cd", set())
    assert list(other.deaths()) == []  # while the first one is at it
    deaths.close()  # it dies, or the database is away
    assert list(other.deaths()) == [Death("host:2:cd", set())]
    assert list(place.deaths()) == []


def test_a_death_that_waits_for_the_database_counts_once(parent: Path) -> None:
    places = [JournalFolder("postgresql://x/db", "s") for _ in range(3)]
    job = Token(str(uuid4()), 1, "c")
    journal = places[0].open("host:2:cd", 2)
    assert journal is not None
    begin(journal, job.id)
    journal.close(orderly=False)
    for place in places:
        for death in place.deaths():
            assert death == Death("host:2:cd", {job.id})
            death.cleared = False
    assert list(places[0].deaths()) == [Death("host:2:cd", {job.id})]
    assert list(places[1].deaths()) == []
    assert places[2].suspects() == {job.id: False}


class Answering:
    """A link whose calls are their own answers."""

    async def run(self, call: object) -> object:
        return call


async def test_of_the_jobs_in_hand_only_those_that_ran_are_counted_as_running(
    place: JournalFolder, caplog: pytest.LogCaptureFixture
) -> None:
    owned = [Token(str(uuid4()), 1, "c") for _ in range(3)]
    reported = {str(uuid4()) for _ in range(5)}  # ended before the worker died, or lost; its journal has them still
    journal = place.open("host:2:cd", 8)
    assert journal is not None
    for job in (*reported, owned[0].id):
        begin(journal, job)
    journal.close(orderly=False)
    link: Any = Answering()
    store: Any = SimpleNamespace(owned=lambda _: owned, release=lambda *_: None)
    ports = Ports("w", link, store, Telemetry(), Outage())
    recovering = asyncio.create_task(CrashRecovery(ports, folder=place, found=lambda: None).run())
    await auntil(lambda: "worker host:2:cd died with 3 jobs in hand, 1 of them running: 3 given back" in caplog.text)
    recovering.cancel()
    await asyncio.wait([recovering])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_of_a_worker_does_not_keep_its_death_from_being_noticed(place: JournalFolder) -> None:
    """As a task makes one: multiprocessing with the start method fork."""
    journal = place.open("host:2:cd", 2)
    assert journal is not None
    job = str(uuid4())
    begin(journal, job)
    until, ready = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready[1], b"x")
        os.close(until[1])
        os.read(until[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        assert list(place.deaths()) == []  # its parent lives
        journal.close(orderly=False)
        assert [death.running for death in place.deaths()] == [{job}]
    finally:
        for descriptor in (*until, *ready):
            os.close(descriptor)
        os.waitpid(child, 0)
