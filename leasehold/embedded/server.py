"""The development PostgreSQL, as its users see it."""

import fcntl
import os
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self
from urllib.parse import quote

from leasehold._os_process import closed_here, not_in_forks
from leasehold.embedded import _processes
from leasehold.embedded.binaries import find_binaries
from leasehold.embedded.cluster import SOCKET_PORT, SUPERUSER, Cluster, State, environment, write_private
from leasehold.errors import EmbeddedError

DEFAULTS: Mapping[str, str] = {"max_connections": "100", "shared_buffers": "128MB", "fsync": "on"}
# Settings that the arguments of EmbeddedServer decide.
_OURS = {"data_directory", "listen_addresses", "port", "unix_socket_directories", "unix_socket_permissions"}

# Serialises the creation of databases among processes. Any number would do.
_CREATE_DATABASE = """
select pg_advisory_lock(7235424110) \\g /dev/null
select format('create database %I template template0', :'name')
 where not exists (select from pg_database where datname = :'name') \\gexec
"""


class EmbeddedServer:
    """A PostgreSQL for development, shared by all processes that name the same home.

    `home` is the folder for everything (each major version has its own in it), `version` as for `find_binaries`,
    `settings` are settings of PostgreSQL. `tcp` lets it listen on 127.0.0.1 too, with a password, at `port` or a free
    one. A process that joins a running server gets what it asks for or an error.

    From `start` to `close` the process has a hold on the server. A forked child has none: it may use the server while
    its parent does, or start its own `EmbeddedServer`. All calls block; none is meant for two threads at once.
    """

    def __init__(
        self, home: Path | str = ".leasehold", *, version: str | None = None,
        settings: Mapping[str, str | int | float | bool] | None = None, tcp: bool = False, port: int | None = None,
        timeout: float = 60.0,
    ) -> None:  # fmt: skip
        self.home = Path(home).absolute()
        if "\n" in str(self.home):
            # The lock file of PostgreSQL has the path in one of its lines.
            raise EmbeddedError(f"the home {str(self.home)!r} has a line break in it", hint="choose another")
        self._settings = {name: _as_text(name, value) for name, value in (settings or {}).items()}
        self._tcp = tcp or port is not None
        self._port = port
        self._timeout = timeout
        binaries = find_binaries(version)
        self.bin_dir, self.version, self.major = binaries.bin_dir, binaries.version, binaries.major
        """Of the programs: psql, pg_dump and so on."""
        self._folder = self.home / f"pg{self.major}"
        self._cluster = Cluster(self._folder, binaries, timeout)
        self.data, self.log = self._cluster.data, self._cluster.log
        self._state: State | None = None
        self._hold: int | None = None
        self._pid = 0

    @property
    def is_running(self) -> bool:
        """Whether a server runs in this home, started by this process or another."""
        return _processes.is_locked(self._folder / _processes.SERVER)

    def start(self) -> Self:
        """Take a hold and start the server, or join it. Again: bring it back if it was killed."""
        try:
            # Only in a home that was made here: a database does not belong in a repository.
            if not self.home.exists():
                self.home.mkdir(parents=True, exist_ok=True)
                (self.home / ".gitignore").write_text("*\n")
            self._folder.mkdir(exist_ok=True)
            with self._transition() as carry:
                self._start(carry)
        except OSError as error:
            message = f"cannot use {self.home} for the development server: {error}"
            hint = "choose a home that you own, or remove what another user left there"
            raise EmbeddedError(message, hint=hint) from error
        return self

    def close(self) -> None:
        """Give up the hold. The last user's call returns when the server has stopped."""
        hold, self._hold, self._state = self._own_hold(), None, None
        if hold is None:
            return
        try:
            # Not if the folder was removed meanwhile: the server that is there now is another's.
            if _processes.is_current(hold, self._folder / _processes.HOLD):
                with self._transition():
                    if _processes.is_alone(hold):
                        _processes.stop_server(self._folder)
                    else:
                        self._ensure_watcher()
        finally:
            _release(hold)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def dsn(self, database: str = SUPERUSER, *, tcp: bool = False) -> str:
        """Return the address of a database: a URI for the socket, or with `tcp` for 127.0.0.1."""
        if (state := self._state) is None:
            raise EmbeddedError("the server is not started", hint="call start() or use it in a with block")
        name = quote(database, safe="")
        if not tcp:
            host = quote(state.socket_folder, safe="/")
            return f"postgresql://{SUPERUSER}@/{name}?host={host}&port={state.port}"
        if not state.tcp:
            raise EmbeddedError("the server does not listen on TCP", hint="EmbeddedServer(tcp=True)")
        return f"postgresql://{SUPERUSER}:{self._password()}@127.0.0.1:{state.port}/{name}"

    def ensure_database(self, name: str) -> None:
        """Create a database unless it is there. Any number of processes may do so at once."""
        if not 0 < len(name.encode()) < 64:
            raise EmbeddedError(f"{name!r} cannot be the name of a database", hint="use 1 to 63 bytes")
        self._psql(_CREATE_DATABASE, "-v", f"name={name}")

    def _start(self, carry: int) -> None:
        self._take_hold()
        try:
            # First, so that a server never runs unwatched, even if this process is killed in the next line.
            self._ensure_watcher()
            self._state = self._join()
            if self._state is None:
                self._cluster.initialise(carry)
                port = self._port or (_free_port() if self._tcp else SOCKET_PORT)
                settings = {**DEFAULTS, **self._settings}
                self._state = self._cluster.launch(settings=settings, tcp=self._tcp, port=port, carry=carry)
            if self._tcp:
                self._psql(f"alter role {SUPERUSER} password '{self._password()}'")
        except BaseException:
            hold, self._hold, self._state = self._hold, None, None
            if hold is not None:
                _release(hold)
            raise

    def _join(self) -> State | None:
        if not self._cluster.is_up():
            return None
        state = self._cluster.state()
        difference = self._difference(state)
        if not difference:
            return state
        # There is no other user: the last one is leaving right now, so the server may start anew.
        if self._hold is not None and _processes.is_alone(self._hold):
            _processes.stop_server(self._folder)
            _processes.lock_within(self._hold, fcntl.LOCK_SH, self._timeout)
            return None
        message = f"other processes use the server in {self.home} with {difference}"
        raise EmbeddedError(message, hint="stop them, choose another home, or start with their settings")

    def _difference(self, state: State | None) -> str:
        if state is None:
            return "settings that are not recorded"
        for name, value in self._settings.items():
            if state.settings.get(name) != value:
                return f"{name}={state.settings.get(name)!r}, not {value!r}"
        if self._tcp and not state.tcp:
            return "no TCP"
        return f"port {state.port}" if self._port not in (None, state.port) else ""

    def _ensure_watcher(self) -> None:
        lock = self._folder / _processes.WATCHER
        if not _processes.is_locked(lock):
            command = [sys.executable, "-I", "-S", _processes.__file__, "watch", str(self._folder)]
            null = subprocess.DEVNULL
            subprocess.run(command, stdin=null, stdout=null, stderr=null, env=environment(), check=False)
        if not _processes.within(self._timeout, lambda: _processes.is_locked(lock)):
            raise EmbeddedError(f"the watcher of {self._folder} does not start")

    @contextmanager
    def _transition(self) -> Iterator[int]:
        path = self._folder / _processes.TRANSITION
        descriptor = _open(path)
        try:
            if not _processes.lock_within(descriptor, fcntl.LOCK_EX, self._timeout):
                message = f"another process starts or stops the server in {self.home} for over {self._timeout:g} s"
                raise EmbeddedError(message, hint=f"find it with: fuser {path}")
            yield descriptor
        finally:
            _release(descriptor)

    def _take_hold(self) -> None:
        self._hold = self._own_hold()
        path = self._folder / _processes.HOLD
        if self._hold is not None and not _processes.is_current(self._hold, path):
            _release(self._hold)
            self._hold = None
        if self._hold is None:
            self._hold, self._pid = _open(path), os.getpid()
            # Free or shared at any moment: the watcher has it only for the moment in which it wakes up.
            fcntl.flock(self._hold, fcntl.LOCK_SH)

    def _own_hold(self) -> int | None:
        return self._hold if self._pid == os.getpid() else None

    def _password(self) -> str:
        path = self._folder / "password"
        if not path.exists():
            write_private(path, secrets.token_urlsafe(24))
        return path.read_text()

    def _psql(self, script: str, *options: str) -> None:
        command = [str(self.bin_dir / "psql"), "-XAtqw", "-v", "ON_ERROR_STOP=1", *options, "-d", self.dsn()]
        done = subprocess.run(command, input=script.encode(), capture_output=True, env=environment(), check=False)
        if done.returncode:
            raise EmbeddedError(f"psql failed in {self.home}: {done.stderr.decode(errors='replace').strip()}")


def _as_text(name: str, value: str | float | bool) -> str:
    if not re.fullmatch(r"[A-Za-z_][\w.]*", name) or name in _OURS:
        message = f"the development server takes no setting {name!r}"
        raise EmbeddedError(message, hint="home, tcp and port are arguments of EmbeddedServer")
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _open(path: Path) -> int:
    descriptor = _processes.open_lock(path)
    not_in_forks(descriptor)  # a forked child shares our locks and would keep the server alive after us
    return descriptor


def _release(descriptor: int) -> None:
    # Unlocked and not only closed: a child that was forked in an unlucky moment may still have it open.
    closed_here(descriptor)
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
