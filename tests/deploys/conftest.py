"""Two releases, real processes of both, and a prober that notices when the database makes them wait."""

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import dict_row

ROOT: Final = Path(__file__).parents[2]
PROGRAMS: Final = Path(__file__).parent / "programs"
MIGRATIONS: Final = "leasehold/db/sql/migrations"
FUNCTIONS: Final = "leasehold/db/sql/functions"
DEADLINE: Final = 90.0

# What a process says when something went wrong. A worker that is asked to stop says so at INFO.
TROUBLE: Final = re.compile(r"(?m)^.*( WARNING | ERROR | CRITICAL |Traceback|Error:).*$")

# A migration locks tables until it commits. On a busy machine that may be longer than a claim waits for a lock: the
# worker says so and goes on.
PASSING: Final = re.compile(r"gave up waiting for a lock|goes on after")


def git(*arguments: str) -> bytes | None:
    """What git says, or None where there is no repository, or not enough of one."""
    if shutil.which("git") is None:
        return None
    found = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=False, timeout=60)
    return found.stdout if found.returncode == 0 else None


def sql_files(commit: str, folder: str) -> dict[str, bytes] | None:
    """The content of a folder of SQL files in a commit, or None where the commit cannot be read."""
    archive = git("archive", "--format=tar", commit, folder)
    if archive is None:
        return None
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {Path(m.name).name: file.read() for m in tar.getmembers() if (file := tar.extractfile(m))}


def forms(files: dict[str, bytes]) -> dict[str, list[str]]:
    """The functions with their arguments and results: `create or replace` can change neither."""
    text = b"\n".join(files.values()).decode()
    heads = re.findall(r"create or replace function (\w+)(\(.*?)\slanguage\s", text, re.DOTALL)
    return {name: head.split() for name, head in heads}


def is_release_before(commit: str) -> bool:
    """Whether it has our migrations without the latest; while there is only one, that one and other functions."""
    theirs = sql_files(commit, MIGRATIONS)
    if not theirs:
        return False
    ours = {file.name: file.read_bytes() for file in sorted((ROOT / MIGRATIONS).glob("*.sql"))}
    if len(ours) > 1:
        return sorted(theirs.items()) == list(ours.items())[: len(theirs)] and len(theirs) < len(ours)
    functions = {file.name: file.read_bytes() for file in (ROOT / FUNCTIONS).glob("*.sql")}
    before = sql_files(commit, FUNCTIONS) or {}
    # No second migration means that nothing is released: until then a function may still change its form.
    old, new = forms(before), forms(functions)
    return theirs == ours and before != functions and all(old[name] == new[name] for name in old.keys() & new)


def previous_commit() -> str | None:
    """The newest commit that stands for the release before this one."""
    changes = git("rev-list", "HEAD", "--", "leasehold/db/sql")
    candidates = ["HEAD", *(f"{commit}^" for commit in (changes or b"").decode().split())]
    return next(filter(is_release_before, candidates), None)


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the previous release, as it was landed.

    Where no commit can stand for one (nothing is released, or this is no clone), it is this one with other texts of the
    same functions.
    """
    place = tmp_path_factory.mktemp("previous")
    commit = previous_commit()
    archive = git("archive", "--format=tar", commit, "leasehold") if commit else None
    if archive is None:
        shutil.copytree(ROOT / "leasehold", place / "leasehold", ignore=shutil.ignore_patterns("__pycache__"))
        for file in (place / FUNCTIONS).glob("*.sql"):
            file.write_text(f"{file.read_text()}\n-- the release before\n")
    else:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(place, filter="data")
    # Lower than ours, as that of any release before.
    (place / "leasehold/version.py").write_text('__version__ = "0.0.0"\n')
    return place


class Process:
    """A running program of one release, and everything it has said."""

    def __init__(self, release: Path, place: Path, dsn: str, command: tuple[str, ...]) -> None:
        self._said = place / f"{uuid4()}.log"
        path = os.pathsep.join([str(release), str(PROGRAMS)])
        with self._said.open("wb") as said:
            self.popen = subprocess.Popen(
                [sys.executable, *command],
                cwd=place,
                env={**os.environ, "LEASEHOLD_DSN": dsn, "PYTHONPATH": path, "PYTHONWARNINGS": "default"},
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    @property
    def said(self) -> str:
        return self._said.read_text()

    def wait(self) -> int:
        return self.popen.wait(DEADLINE)

    def stop(self) -> int:
        """Ask it to stop, as a deployment does."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
        return self.wait()

    def trouble(self) -> list[str]:
        lines = (found.group() for found in TROUBLE.finditer(self.said))
        return [line for line in lines if not PASSING.search(line)]


class Releases:
    """Starts programs of either release on one database."""

    def __init__(self, place: Path, dsn: str) -> None:
        self._place = place
        self._dsn = dsn
        self.started: list[Process] = []

    def start(self, release: Path, *command: str) -> Process:
        process = Process(release, self._place, self._dsn, command)
        self.started.append(process)
        return process

    def worker(self, release: Path) -> Process:
        options = ("--slots", "4", "--queues", "default")
        return self.start(release, "-m", "leasehold", "worker", "deployed_tasks:app", *options)

    def producer(self, release: Path) -> Process:
        return self.start(release, "-m", "deployed_producer")

    def migrate(self, release: Path) -> Process:
        process = self.start(release, "-m", "leasehold", "migrate")
        process.wait()
        return process

    def stop(self) -> None:
        """Producers first, so that workers end what there is."""
        for process in reversed(self.started):
            process.stop()

    def kill(self) -> None:
        for process in self.started:
            if process.popen.poll() is None:
                process.popen.kill()
            process.popen.communicate()


@pytest.fixture
def releases(tmp_path: Path, empty_dsn: str) -> Iterator[Releases]:
    found = Releases(tmp_path, empty_dsn)
    try:
        yield found
    finally:
        found.kill()


class Prober(threading.Thread):
    """Enqueues, claims and finishes a job again and again: it waits for every lock that a program would."""

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self._dsn = dsn
        self._over = threading.Event()
        self.longest = 0.0
        self.rounds = 0
        self.errors: list[str] = []

    def run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True, options="-c search_path=leasehold") as connection:
            while not self._over.wait(0.01):
                try:
                    self._round(connection)
                except psycopg.Error as error:
                    self.errors.append(str(error))
                self.rounds += 1

    def stop(self) -> None:
        self._over.set()
        self.join(DEADLINE)
        assert not self.is_alive()

    def _round(self, connection: psycopg.Connection[Any]) -> None:
        self._call(connection, "enqueue_v1('probe', queue => 'probe')")
        claim = "claim_v1('prober', '{probe}', '{probe}', claim_id => gen_random_uuid())"
        for job in self._call(connection, claim):
            token = [[job["id"]], [job["attempt"]]]
            self._call(connection, "heartbeat_v1('prober', %s, %s)", token)
            self._call(connection, "complete_v1('prober', %s, %s)", token)

    def _call(self, connection: psycopg.Connection[Any], call: str, arguments: list[Any] | None = None) -> list[Any]:
        """A call that gave up waiting for a lock is repeated, as workers do; all its tries count as one wait."""
        begun = time.monotonic()
        try:
            while True:
                with contextlib.suppress(psycopg.errors.LockNotAvailable):
                    return (
                        connection.cursor(row_factory=dict_row).execute(f"select * from {call}", arguments).fetchall()
                    )
        finally:
            self.longest = max(self.longest, time.monotonic() - begun)


@contextmanager
def probing(dsn: str) -> Iterator[Prober]:
    prober = Prober(dsn)
    prober.start()
    try:
        yield prober
    finally:
        prober.stop()


@contextmanager
def looking(dsn: str) -> Iterator[Callable[..., Any]]:
    """Asks the database for one value."""
    with psycopg.connect(dsn, autocommit=True, options="-c search_path=leasehold") as connection:

        def ask(query: str, *arguments: object) -> Any:
            found = connection.execute(query, arguments or None).fetchone()
            return found[0] if found else None

        yield ask
