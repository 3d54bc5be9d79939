"""One data folder and the server on it. Everything here is done under the transition lock."""

import hashlib
import json
import os
import pwd
import re
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from leasehold.embedded import _processes
from leasehold.embedded.binaries import Binaries
from leasehold.errors import EmbeddedError

SUPERUSER = "postgres"
SOCKET_PORT = 5432
# `.s.PGSQL.65535.lock` and the name of our folder have to fit into the 107 bytes of a socket's path.
_SOCKET_BASE = re.compile(r"[A-Za-z0-9/._+-]{1,50}")


@dataclass(frozen=True, kw_only=True)
class State:
    """What the running server was started with; recorded for processes that join."""

    socket_folder: str
    port: int
    tcp: bool
    settings: Mapping[str, str]


class Cluster:
    """The folder of one major version in the home, and the programs for it."""

    def __init__(self, folder: Path, binaries: Binaries, timeout: float) -> None:
        self.folder = folder
        self.data = folder / _processes.DATA
        self.log = folder / "server.log"
        self._binaries = binaries
        self._timeout = timeout

    def state(self) -> State | None:
        """Return what the server was started with."""
        found = _processes.read_state(self.folder)
        return State(**found) if found.keys() == State.__dataclass_fields__.keys() else None

    def is_up(self) -> bool:
        """Return whether a server accepts connections. Waits for one that is starting, stopping or was killed."""
        deadline = time.monotonic() + self._timeout
        while _processes.is_locked(self.folder / _processes.SERVER):
            if self._answers():
                return True
            master = _processes.postmaster(self.data)
            # Without a postmaster these are children that outlived it, and may compute for hours.
            if master is None and _processes.processes(self.data) and not _processes.stop_server(self.folder):
                break
            if time.monotonic() > deadline:
                break
            time.sleep(_processes.PAUSE)
        else:
            return False
        hint = f"see {self.log}; does a server of another container use the same folder?"
        raise EmbeddedError(f"the server in {self.folder} is locked but does not answer", hint=hint)

    def initialise(self, carry: int) -> None:
        """Make the data folder unless it is there. Complete or not at all, even if killed."""
        if self.data.exists():
            self._check_data()
            return
        for leftover in self.folder.glob("init-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        fresh = Path(tempfile.mkdtemp(prefix="init-", dir=self.folder))
        self._give_away(fresh)
        command = [str(self._binaries.bin_dir / "initdb"), "-D", str(fresh), "-U", SUPERUSER]
        # No password on the socket, which lies in a folder of mode 0700.
        command += ["--auth-local=trust", "--auth-host=scram-sha-256", "--encoding=UTF8", "--locale=C"]
        command += ["--no-sync", "--no-instructions"]
        if self._binaries.major >= 17:
            # Unlike C it knows upper and lower case, and needs nothing of the machine.
            command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        done = self._launch(command, carry=carry, reach=[fresh])
        if done.returncode:
            shutil.rmtree(fresh, ignore_errors=True)
            # Containers run as users without a name, which of all programs only initdb refuses.
            named = any(entry.pw_uid == os.geteuid() for entry in pwd.getpwall())
            hint = None if named else "run as a user that has an entry in /etc/passwd"
            raise EmbeddedError(f"initdb failed in {self.folder}: {_tail(done.stdout + done.stderr)}", hint=hint)
        fresh.rename(self.data)

    def launch(self, *, settings: Mapping[str, str], tcp: bool, port: int, carry: int) -> State:
        """Start the server and wait until it accepts connections."""
        # server.lock is free, so only a server started by other means can be running.
        if foreign := _processes.postmaster(self.data):
            message = f"a PostgreSQL that was not started by Leasehold (pid {foreign[0]}) uses {self.data}"
            raise EmbeddedError(message, hint="stop it first")
        # PostgreSQL would take any live process with the number in this file for its predecessor.
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        state = State(socket_folder=str(self._socket_folder()), port=port, tcp=tcp, settings=dict(settings))
        write_private(self.folder / _processes.STATE, json.dumps(asdict(state)))
        command = [str(self._binaries.bin_dir / "postgres"), "-D", str(self.data)]
        place = {"unix_socket_directories": state.socket_folder, "port": port}
        options = {**settings, **place, "listen_addresses": "127.0.0.1" if tcp else ""}
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        self.log.touch(mode=0o600)
        with self.log.open("ab") as log:
            if log.tell() > 10_000_000:
                log.truncate(0)
            before = self.log.stat().st_size
            reach = [self.data, Path(state.socket_folder)]
            done = self._launch(command, carry=carry, reach=reach, log=log.fileno())
        if done.returncode or not self._becomes_ready():
            said = self.log.read_bytes()[before:].decode(errors="replace")
            _processes.stop_server(self.folder)
            message = f"PostgreSQL {self._binaries.version} does not start in {self.data}"
            raise EmbeddedError(f"{message}: {_tail((done.stderr or '') + said)}", hint=f"the whole log is {self.log}")
        return state

    def _becomes_ready(self) -> bool:
        lock = self.folder / _processes.SERVER
        _processes.within(self._timeout, lambda: self._answers() or not _processes.is_locked(lock))
        return self._answers()

    def _answers(self) -> bool:
        master = _processes.postmaster(self.data)
        if master is None or master[1] != "ready":
            return False
        if (state := self.state()) is None:
            return True
        # A postmaster that was just killed still looks alive for a moment, so it is asked for TLS, which the socket has
        # not: one byte from a live server, and no line in its log.
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(5.0)
            try:
                client.connect(f"{state.socket_folder}/.s.PGSQL.{state.port}")
                client.sendall(struct.pack("!II", 8, 80877103))
                return client.recv(1) != b""
            except OSError:
                return False

    def _user(self) -> tuple[int, int] | None:
        """Return the uid and gid of the server, if not our own: PostgreSQL refuses root."""
        if os.geteuid() != 0:
            return None
        if self.data.exists():
            owner = self.data.stat()
            return owner.st_uid, owner.st_gid
        # One with a name: initdb refuses a bare number.
        users = {entry.pw_name: (entry.pw_uid, entry.pw_gid) for entry in pwd.getpwall() if entry.pw_uid}
        for name in (SUPERUSER, "nobody", *users):
            if name in users:
                return users[name]
        message = "PostgreSQL does not run as root, and /etc/passwd has no other user"
        raise EmbeddedError(message, hint="add a user such as postgres, or run as an ordinary user")

    def _give_away(self, folder: Path) -> None:
        if user := self._user():
            os.chown(folder, *user, follow_symlinks=False)

    def _check_data(self) -> None:
        owner = self.data.stat().st_uid
        if owner == 0 or os.geteuid() not in (0, owner):
            message = f"{self.data} belongs to uid {owner}, and we are uid {os.geteuid()}"
            hint = "run as its owner, choose another home, or remove the folder to begin anew"
            raise EmbeddedError(message, hint=hint)
        try:
            major = (self.data / "PG_VERSION").read_text().strip()
        except OSError as error:
            message = f"{self.data} is no data folder of PostgreSQL: {error}"
            raise EmbeddedError(message, hint="remove it to begin anew") from error
        if major != str(self._binaries.major):
            ours = f"{self._binaries.bin_dir} is {self._binaries.version}"
            hint = f"choose version {major}, another home, or remove the folder to begin anew"
            raise EmbeddedError(f"{self.data} was made by PostgreSQL {major}, but {ours}", hint=hint)

    def _socket_folder(self) -> Path:
        """Return a private folder with a short name; the same one every time, so that DSNs can be written down."""
        user = self._user()
        uid = user[0] if user else os.geteuid()
        status = self.folder.stat()
        named = f"{self.folder.resolve()}|{status.st_dev}|{status.st_ino}|{uid}"
        digest = hashlib.sha256(os.fsencode(named)).hexdigest()[:16]
        # The system's folder first: $TMPDIR may belong to one user's task and end with it.
        for base in ("/tmp", tempfile.gettempdir(), str(self.folder)):  # noqa: S108 (verified below)
            if not _SOCKET_BASE.fullmatch(base):
                continue
            place = Path(base, f"leasehold-{digest}")
            try:
                if not _make_private(place, uid):
                    place = Path(tempfile.mkdtemp(prefix="leasehold-", dir=base))
                self._give_away(place)
            except OSError:
                continue
            _processes.clear_sockets(place)
            return place
        tried = f"neither /tmp nor {tempfile.gettempdir()} is writable and short enough"
        hint = "set TMPDIR to a folder with a path of at most 50 plain characters"
        raise EmbeddedError(f"no folder for the socket of {self.folder}: {tried}", hint=hint)

    def _launch(
        self, command: list[str], *, carry: int, reach: list[Path], log: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Execute a program as the server's user. With a log it is the server: it is detached and locks server.lock."""
        uid, gid = self._user() or (None, None)
        spec = {
            "command": command,
            "uid": uid,
            "gid": gid,
            "reach": [*map(str, reach), str(self._binaries.bin_dir)],
            "lock": None if log is None else str(self.folder / _processes.SERVER),
            "carry": carry,
        }
        done = subprocess.run(
            [sys.executable, "-I", "-S", _processes.__file__, "launch", json.dumps(spec)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if log is None else log,
            stderr=subprocess.PIPE,
            # If this process is killed now, the transition lock stays until the program has started or ended.
            pass_fds=(carry,),
            env=environment(),
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        if done.returncode == _processes.FAILED:
            message = f"as uid {uid} the server cannot run in {self.folder}: {done.stderr.strip()}"
            cure = "choose a home and a virtualenv below folders that everybody may enter, run as an ordinary user"
            raise EmbeddedError(message, hint=f"{cure}, or allow CAP_DAC_READ_SEARCH")
        return done


def environment() -> dict[str, str]:
    """Return ours without what would lead PostgreSQL's programs elsewhere or change their language or time zone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
    return kept | {"LC_ALL": "C", "PGCLIENTENCODING": "UTF8", "TZ": "UTC"}


def _make_private(place: Path, uid: int) -> bool:
    try:
        place.mkdir(mode=0o700)
    except FileExistsError:
        # In a folder where every user may write, another may have made it first.
        found = place.lstat()
        ours = found.st_uid in (uid, os.geteuid()) and not found.st_mode & 0o077
        return ours and stat.S_ISDIR(found.st_mode)
    return True


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    new = path.with_name(f"{path.name}.new")
    new.touch(mode=0o600)
    new.write_text(text)
    new.replace(path)


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-15:])
