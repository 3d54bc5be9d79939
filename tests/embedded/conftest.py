"""Users of the development server that can be killed: processes of their own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from faults.waiting import until
from leasehold.embedded import EmbeddedServer, _processes

REPOSITORY = Path(__file__).parents[2]

# Starts, says so in a line of JSON, and leaves when its stdin ends.
USER = """
import json, sys
from leasehold.embedded import EmbeddedServer
from leasehold.errors import EmbeddedError
server = EmbeddedServer(sys.argv[1], **json.loads(sys.argv[2]))
try:
    server.start()
except EmbeddedError as error:
    print(json.dumps({"error": str(error)}), flush=True)
    sys.exit(3)
print(json.dumps({"dsn": server.dsn(), "bin_dir": str(server.bin_dir)}), flush=True)
sys.stdin.read()
server.close()
"""


def alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@dataclass
class User:
    """A process that uses the server."""

    process: subprocess.Popen[str]

    def answer(self) -> dict[str, str]:
        assert self.process.stdout is not None
        answer: dict[str, str] = json.loads(self.process.stdout.readline())
        return answer

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)


@dataclass
class Lab:
    """A home, its users, and what can be seen of its server from outside."""

    home: Path
    users: list[User] = field(default_factory=list)
    servers: list[EmbeddedServer] = field(default_factory=list)

    alive = staticmethod(alive)

    def server(self, **arguments: Any) -> EmbeddedServer:
        self.servers.append(EmbeddedServer(self.home, **arguments))
        return self.servers[-1]

    def user(
        self,
        *,
        script: str = USER,
        prefix: Sequence[str] = (),
        **arguments: Any,
    ) -> User:
        process = subprocess.Popen(
            [*prefix, sys.executable, "-c", script, str(self.home), json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"},
            start_new_session=True,
        )
        self.users.append(User(process))
        return self.users[-1]

    @property
    def folder(self) -> Path:
        return next(self.home.glob("pg*"))

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def running(self) -> bool:
        return self.home.exists() and _processes.is_locked(self.folder / _processes.SERVER)

    def postmaster(self) -> int:
        found = _processes.postmaster(self.data)
        assert found is not None
        return found[0]

    def watchers(self) -> list[int]:
        wanted = [b"watch", os.fsencode(self.folder), b""]
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                words = entry.joinpath("cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
                if words[-3:] == wanted and words[-4].endswith(b"_processes.py") and alive(int(entry.name)):
                    found.append(int(entry.name))
        return found

    def gone(self) -> bool:
        return not self.running() and not self.watchers() and not _processes.processes(self.data)

    def kill_everything(self) -> None:
        victims = [*self.watchers(), self.postmaster(), *_processes.processes(self.data)]
        for pid in victims:  # before the users: a watcher whose users have gone stops the server in good order
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for user in self.users:
            user.process.kill()
        for user in self.users:
            user.process.wait(60)
        until(lambda: not any(map(alive, victims)))


def ask(dsn: str, query: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(query)
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


@pytest.fixture
def query() -> Callable[[str, str], Any]:
    return ask


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that, unlike pytest's own, every user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="test-leasehold-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def open_lab(open_folder: Path) -> Iterator[Lab]:
    """As `lab`, in such a folder."""
    yield from _lab(open_folder / "home")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    yield from _lab(tmp_path / "home")


def _lab(home: Path) -> Iterator[Lab]:
    lab = Lab(home)
    yield lab
    for server in lab.servers:
        server.close()
    for user in lab.users:
        user.kill()
        for stream in (user.process.stdin, user.process.stdout):
            assert stream is not None
            stream.close()
    if lab.home.exists() and list(lab.home.glob("pg*")):
        until(lab.gone, within=15)
