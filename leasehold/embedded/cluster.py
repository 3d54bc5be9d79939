"""One data folder and the server on it: made, started, judged. All of it under the transition lock."""

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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from leasehold.embedded import _launch, _watcher
from leasehold.embedded.binaries import Binaries
from leasehold.errors import EmbeddedError

SUPERUSER = "postgres"
SOCKET_PORT = 5432
LOG_LIMIT = 10_000_000
# `.s.PGSQL.65535.lock` and the name of our folder have to fit into the 107 bytes of a socket's path.
_SOCKET_BASE = re.compile(r"[A-Za-z0-9/._+-]{1,50}")


@dataclass(frozen=True, kw_only=True)
class State:
    """What the running server was started with; recorded for those who join."""

    socket_folder: str
    port: int
    tcp: bool
    settings: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The folder of one major version in the home, and the programs for it."""

    folder: Path
    binaries: Binaries
    timeout: float

    @property
    def data(self) -> Path:
        """The data folder of PostgreSQL."""
        return self.folder / _watcher.DATA

    @property
    def log(self) -> Path:
        """The log of the server."""
        return self.folder / "server.log"

    def state(self) -> State | None:
        """What the server was started with."""
        found = _watcher.read_state(self.folder)
        return State(**found) if found.keys() == State.__dataclass_fields__.keys() else None

    def is_up(self) -> bool:
        """Whether a server accepts connections. Waits for one that is starting, stopping or was killed."""
        deadline = time.monotonic() + self.timeout
        while _watcher.is_locked(self.folder / _watcher.SERVER):
            if self._answers():
                return True
            master = _watcher.postmaster(self.data)
            # Without a postmaster these are children that outlived it, and may compute for hours.
            if master is None and _watcher.processes(self.data) and not _watcher.stop_server(self.folder):
                break
            if time.monotonic() > deadline:
                break
            time.sleep(_watcher.PAUSE)
        else:
            return False
        raise EmbeddedError(
            f"the server in {self.folder} is locked but does not answer",
            hint=f"see {self.log}; does a server of another container use the same folder?",
        )

    def initialise(self, carry: int) -> None:
        """Make the data folder unless it is there. Complete or not at all, even if killed."""
        if self.data.exists():
            self._check_data()
            return
        for leftover in self.folder.glob("init-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        fresh = Path(tempfile.mkdtemp(prefix="init-", dir=self.folder))
        self._give_away(fresh)
        command = [self.binaries.program("initdb"), "-D", str(fresh), "-U", SUPERUSER, "--no-sync"]
        command += ["--no-instructions"]
        # Trust for those who get at the socket, which lies in a folder of mode 0700.
        command += ["--auth-local=trust", "--auth-host=scram-sha-256", "--encoding=UTF8", "--locale=C"]
        if self.binaries.major >= 17:
            # Unlike C it knows upper and lower case, and needs nothing of the machine.
            command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        # The same zone on every machine; initdb would search for the machine's own.
        done = self._launch(command, carry=carry, reach=[fresh], extra={"TZ": "UTC"})
        if done.returncode:
            shutil.rmtree(fresh, ignore_errors=True)
            raise EmbeddedError(
                f"initdb failed in {self.folder}: {_tail(done.stdout + done.stderr)}",
                # Containers run under such numbers; of all programs only initdb minds.
                hint=None if _has_name(os.geteuid()) else "run as a user that has an entry in /etc/passwd",
            )
        fresh.rename(self.data)

    def launch(self, *, settings: Mapping[str, str], tcp: bool, port: int, carry: int) -> State:
        """Start the server and wait until it accepts connections."""
        self._drop_stale_pid()
        state = State(socket_folder=str(self._socket_folder()), port=port, tcp=tcp, settings=dict(settings))
        write_private(self.folder / _watcher.STATE, json.dumps(asdict(state)))
        command = [self.binaries.program("postgres"), "-D", str(self.data)]
        for name, value in self._options(state).items():
            command += ["-c", f"{name}={value}"]
        self.log.touch(mode=0o600)
        with self.log.open("ab") as log:
            if log.tell() > LOG_LIMIT:
                log.truncate(0)
            before = self.log.stat().st_size
            reach = [self.data, Path(state.socket_folder)]
            done = self._launch(command, carry=carry, reach=reach, log=log.fileno(), detach=True)
        if done.returncode or not self._becomes_ready():
            said = self.log.read_bytes()[before:].decode(errors="replace")
            _watcher.stop_server(self.folder)
            raise EmbeddedError(
                f"PostgreSQL {self.binaries.version} does not start in {self.data}: "
                f"{_tail((done.stderr or '') + said)}",
                hint=f"the whole log is {self.log}",
            )
        return state

    def _becomes_ready(self) -> bool:
        deadline = time.monotonic() + self.timeout
        while time.monotonic() < deadline and _watcher.is_locked(self.folder / _watcher.SERVER):
            if self._answers():
                return True
            time.sleep(_watcher.PAUSE)
        return False

    def _answers(self) -> bool:
        master = _watcher.postmaster(self.data)
        if master is None or master[1] != "ready":
            return False
        state = self.state()
        # Asked, because a postmaster that was just killed still looks alive for a moment.
        return state is None or _answers(f"{state.socket_folder}/.s.PGSQL.{state.port}")

    def _options(self, state: State) -> dict[str, str]:
        return {
            **state.settings,
            "unix_socket_directories": state.socket_folder,
            "port": str(state.port),
            "listen_addresses": "127.0.0.1" if state.tcp else "",
        }

    def _user(self) -> tuple[int, int] | None:
        """As whom the server runs, if not as ourselves: PostgreSQL refuses root."""
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
        raise EmbeddedError(
            "PostgreSQL does not run as root, and /etc/passwd names nobody else",
            hint="add the user nobody, or run as an ordinary user",
        )

    def _give_away(self, folder: Path) -> None:
        if user := self._user():
            os.chown(folder, *user, follow_symlinks=False)

    def _check_data(self) -> None:
        owner = self.data.stat().st_uid
        if owner == 0 or os.geteuid() not in (0, owner):
            raise EmbeddedError(
                f"{self.data} belongs to uid {owner}, and we are uid {os.geteuid()}",
                hint="run as its owner, choose another home, or remove the folder to begin anew",
            )
        try:
            major = (self.data / "PG_VERSION").read_text().strip()
        except OSError as error:
            raise EmbeddedError(
                f"{self.data} is no data folder of PostgreSQL: {error}", hint="remove it to begin anew"
            ) from error
        if major != str(self.binaries.major):
            raise EmbeddedError(
                f"{self.data} was made by PostgreSQL {major}, but {self.binaries.bin_dir} is {self.binaries.version}",
                hint=f"choose version {major}, another home, or remove the folder to begin anew",
            )

    def _drop_stale_pid(self) -> None:
        # Nobody has server.lock, so only a server started by other means can be running.
        if foreign := _watcher.postmaster(self.data):
            raise EmbeddedError(
                f"a PostgreSQL that was not started by Leasehold (pid {foreign[0]}) uses {self.data}",
                hint="stop it first",
            )
        # PostgreSQL would take any live process with the number in this file for its predecessor.
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def _socket_folder(self) -> Path:
        """A private folder with a short name; the same one every time, so that DSNs can be written down."""
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
            _watcher.clear_sockets(place)
            return place
        raise EmbeddedError(
            f"no folder for the socket of {self.folder}: neither /tmp nor {tempfile.gettempdir()} "
            "is writable and short enough",
            hint="set TMPDIR to a folder with a path of at most 50 plain characters",
        )

    def _launch(
        self,
        command: Sequence[str],
        *,
        carry: int,
        reach: Sequence[Path],
        extra: Mapping[str, str] | None = None,
        log: int | None = None,
        detach: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        uid, gid = self._user() or (None, None)
        spec = {
            "command": list(command),
            "uid": uid,
            "gid": gid,
            "reach": [*map(str, reach), str(self.binaries.bin_dir)],
            "lock": str(self.folder / _watcher.SERVER) if detach else None,
            "detach": detach,
            "carry": carry,
        }
        done = subprocess.run(
            [sys.executable, "-I", "-S", _launch.__file__, json.dumps(spec)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if log is None else log,
            stderr=subprocess.PIPE,
            # If we are killed now, the lock stays until what we have begun is over.
            pass_fds=(carry,),
            env={**environment(), **(extra or {})},
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        if done.returncode == _launch.FAILED:
            raise EmbeddedError(
                f"as uid {uid} the server cannot run in {self.folder}: {done.stderr.strip()}",
                hint="choose a home and a virtualenv below folders that everybody may enter, run as an "
                "ordinary user, or allow CAP_DAC_READ_SEARCH",
            )
        return done


def environment() -> dict[str, str]:
    """Ours, without what would lead the programs of PostgreSQL elsewhere or change their language."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
    return kept | {"LC_ALL": "C", "PGCLIENTENCODING": "UTF8"}


def _has_name(uid: int) -> bool:
    return any(entry.pw_uid == uid for entry in pwd.getpwall())


def _answers(path: str) -> bool:
    """Ask for TLS, which the socket has not: one byte from a live server, and no line in its log."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5.0)
        try:
            client.connect(path)
            client.sendall(struct.pack("!II", 8, 80877103))
            return client.recv(1) != b""
        except OSError:
            return False


def _make_private(place: Path, uid: int) -> bool:
    try:
        place.mkdir(mode=0o700)
    except FileExistsError:
        # In a folder where everybody may write, somebody else may have been there first.
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
