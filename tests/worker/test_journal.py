"""A folder for journals that is full, broken or another's costs no outcome, and leaves no file open."""

import fcntl
import os
import resource
from pathlib import Path
from uuid import uuid4

import pytest

from leasehold.db.store import Token
from leasehold.worker.aftermath import Aftermath
from leasehold.worker.journal import Death, Place


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEASEHOLD_RUN_DIR", str(tmp_path))
    return tmp_path / f"leasehold-{os.getuid()}"


@pytest.fixture
def place(parent: Path) -> Place:
    place = Place("postgresql://x/db", "s")
    journal = place.open("host:1:ab", 2)
    assert journal is not None
    journal.close(orderly=True)
    return place


@pytest.fixture
def suspects(place: Place, parent: Path) -> Path:
    [folder] = parent.iterdir()
    return folder / "suspects"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[1]", b'{"a": [1]}', b'{"a": [Infinity, 9e99]}', b"[" * 50_000])
def test_a_broken_list_is_replaced(place: Place, suspects: Path, content: bytes) -> None:
    suspects.write_bytes(content)
    assert place.suspects() == {}
    job = str(uuid4())
    place.suspect({job})
    assert place.suspects() == {job: False}


def test_a_list_for_which_there_is_no_room_is_survived(place: Place, suspects: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        place.suspect({str(uuid4())})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert suspects.stat().st_size <= 10
    place.clear(str(uuid4()))
    assert place.suspects() == {}


def test_a_list_that_another_holds_locked_is_read_and_not_waited_for(place: Place, suspects: Path) -> None:
    job = str(uuid4())
    place.suspect({job})
    with suspects.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        place.clear(job)
        assert place.suspects() == {job: False}


def test_a_folder_that_is_a_link_is_not_used(parent: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    parent.symlink_to(elsewhere)
    place = Place("postgresql://x/db", "s")
    assert place.open("host:1:ab", 2) is None
    place.suspect({str(uuid4())})
    assert list(place.deaths()) == []
    assert place.suspects() == {}
    assert list(elsewhere.iterdir()) == []


def test_a_journal_has_its_room_on_the_disk_and_a_failed_one_leaves_nothing(
    place: Place, parent: Path, monkeypatch: pytest.MonkeyPatch
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


def test_a_death_that_was_not_cleared_up_is_left_to_another_worker(place: Place) -> None:
    journal = place.open("host:2:cd", 2)
    assert journal is not None
    journal.close(orderly=False)
    other = Place("postgresql://x/db", "s")
    deaths = place.deaths()
    assert next(deaths) == Death("host:2:cd", set())
    assert list(other.deaths()) == []  # while the first one is at it
    deaths.close()  # it dies, or the database is away
    assert list(other.deaths()) == [Death("host:2:cd", set())]
    assert list(place.deaths()) == []


def test_a_death_that_waits_for_the_database_counts_once(parent: Path) -> None:
    places = [Place("postgresql://x/db", "s") for _ in range(3)]
    job = Token(str(uuid4()), 1, "c")
    journal = places[0].open("host:2:cd", 2)
    assert journal is not None
    journal.begin(job)
    journal.close(orderly=False)
    for place in places:
        for death in place.deaths():
            assert death == Death("host:2:cd", {job.id})
            death.cleared = False
    assert list(places[0].deaths()) == [Death("host:2:cd", {job.id})]
    assert list(places[1].deaths()) == []
    assert places[2].suspects() == {job.id: False}


def test_of_the_jobs_in_hand_only_those_that_ran_are_counted_as_running(caplog: pytest.LogCaptureFixture) -> None:
    owned = [Token(str(uuid4()), 1, "c") for _ in range(3)]
    reported = {str(uuid4()) for _ in range(5)}  # ended before the worker died, or lost; its journal has them still
    Aftermath._say("w", owned, owned, reported | {owned[0].id})
    assert "worker w died with 3 jobs in hand, 1 of them running: 3 given back" in caplog.text
