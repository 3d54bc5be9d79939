"""PostgreSQL servers that are killed, filled up and replaced."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import psycopg

from faults.waiting import until
from leasehold.db.migrations.migrate import migrate
from leasehold.embedded import EmbeddedServer

DATABASE = "faults"

Settings = Mapping[str, str | int | float | bool]


class Server:
    """One server with a home of its own; clients reach it by its socket, or with `tcp` by its port."""

    def __init__(self, home: Path, settings: Settings | None = None, *, tcp: bool = False) -> None:
        self.home = home
        port = free_port() if tcp else None  # chosen once: clients look for it where it was
        self._tcp = tcp
        self.embedded = EmbeddedServer(home, settings={"max_connections": 200, **(settings or {})}, port=port)

    def start(self) -> "Server":
        """Start it, or bring it back."""
        self.embedded.start()
        return self

    def prepare(self, *, synchronous: bool = True) -> None:
        """Make the database, with our schema, and have every transition of a job written down."""
        if not synchronous:  # where no standby is there to wait for yet
            with psycopg.connect(self.embedded.dsn(), autocommit=True, options="-c synchronous_commit=local") as first:
                first.execute("alter role postgres set synchronous_commit = local")
        self.embedded.ensure_database(DATABASE)
        migrate(self.embedded.dsn(DATABASE))
        with self.connect() as connection:
            connection.execute("select leasehold.history(true)")
            if not synchronous:
                connection.execute("alter role postgres reset synchronous_commit")

    @property
    def dsn(self) -> str:
        """Its address."""
        return self.embedded.dsn(DATABASE, tcp=self._tcp)

    @property
    def socket_folder(self) -> str:
        """Where its socket is."""
        return str(psycopg.conninfo.conninfo_to_dict(self.embedded.dsn(DATABASE))["host"])

    def connect(self) -> psycopg.Connection[Any]:
        """A superuser's connection, by the socket."""
        return psycopg.connect(self.embedded.dsn(DATABASE), autocommit=True, connect_timeout=10)

    def processes(self) -> list[psutil.Process]:
        """The postmaster first, then its children."""
        try:
            number = int((self.embedded.data / "postmaster.pid").read_text().splitlines()[0])
            master = psutil.Process(number)
            return [master, *master.children(recursive=True)]
        except (OSError, ValueError, IndexError, psutil.NoSuchProcess):
            return []

    def find(self, title: str) -> list[psutil.Process]:
        """Its processes with this word in their title: `walreceiver`, `checkpointer`."""
        found = []
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                if title in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def kill(self, how: str) -> None:
        """`all` at once, the `postmaster` alone (its children follow), or an `immediate` shutdown; waits for it."""
        victims = self.processes()
        number = signal.SIGQUIT if how == "immediate" else signal.SIGKILL
        for process in victims if how == "all" else victims[:1]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        _, alive = psutil.wait_procs(victims, timeout=20)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def close(self) -> None:
        """Stop it; it is not started again."""
        self.embedded.close()


class Pair:
    """A primary and a standby that follows it, synchronously or not. Who is promoted is the primary from then on."""

    def __init__(self, folder: Path, *, synchronous: bool, settings: Settings | None = None) -> None:
        names = "standby" if synchronous else ""
        shared = {"synchronous_standby_names": names, "wal_level": "replica", "hot_standby": True, **(settings or {})}
        self.primary = Server(folder / "a", shared)
        self.standby = Server(folder / "b", shared)

    def start(self) -> None:
        """Start the primary; a standby follows with `follow`."""
        self.primary.start()

    @property
    def dsn(self) -> str:
        """The address of both; a client gets the one that takes writes."""
        hosts = ",".join(sorted(_socket_folder_of(server) for server in (self.primary, self.standby)))
        return (
            f"postgresql:///{DATABASE}?user=postgres&host={quote(hosts, safe='/,')}&port=5432,5432"
            "&target_session_attrs=read-write"
        )

    def follow(self) -> None:
        """Make the standby anew, out of the primary, and wait until it streams."""
        embedded = self.standby.embedded
        shutil.rmtree(embedded.data, ignore_errors=True)
        embedded.data.parent.mkdir(parents=True, exist_ok=True)
        source = f"host={self.primary.socket_folder} port=5432 user=postgres application_name=standby"
        command = [str(embedded.bin_dir / "pg_basebackup"), "-D", str(embedded.data), "-d", source]
        subprocess.run([*command, "-R", "-X", "stream", "-c", "fast", "--no-sync"], check=True, capture_output=True)
        _give_away(embedded.data, like=self.primary.embedded.data)
        self.standby.start()
        query = "select count(*) from pg_stat_replication where application_name = 'standby' and state = 'streaming'"
        until(lambda: _ask(self.primary, query) == 1, "the standby streams", within=60)

    def promote(self) -> None:
        """The primary is dead: let the standby take its place."""
        with self.standby.connect() as connection:
            connection.execute("select pg_promote(true, 60)")
        self.primary, self.standby = self.standby, self.primary

    def close(self) -> None:
        """Stop both."""
        self.standby.close()
        self.primary.close()


def free_port() -> int:
    """A port that no process uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def pgbouncer(server: Server, folder: Path) -> Iterator["Pooler"]:
    """A PgBouncer in transaction mode in front of a server that listens on TCP."""
    folder.mkdir(exist_ok=True)
    pooler = Pooler(server, folder)
    pooler.start()
    try:
        yield pooler
    finally:
        pooler.end()


class Pooler:
    """A PgBouncer process; it can be killed and started again under the same address."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._port = free_port()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        target = psycopg.conninfo.conninfo_to_dict(server.dsn)
        user, password = target["user"], target["password"]
        self.dsn = f"postgresql://{user}:{password}@127.0.0.1:{self._port}/{DATABASE}"
        (folder / "users.txt").write_text(f'"{user}" "{password}"\n')
        (folder / "pgbouncer.ini").write_text(
            "[databases]\n"
            f"{DATABASE} = host={target['host']} port={target['port']} dbname={DATABASE} user={user} "
            f"password={password}\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self._port}\nunix_socket_dir =\n"
            f"auth_type = plain\nauth_file = {folder}/users.txt\npool_mode = transaction\ndefault_pool_size = 20\n"
        )

    @staticmethod
    def program() -> str | None:
        """Where PgBouncer is, if it is here."""
        return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

    def start(self) -> None:
        """Start it and wait until it listens."""
        as_whom = {}
        if os.geteuid() == 0:  # it refuses to run as root
            account = pwd.getpwnam("nobody")
            for path in (self._folder, *self._folder.iterdir()):
                os.chown(path, account.pw_uid, account.pw_gid)
            as_whom = {"user": account.pw_uid, "group": account.pw_gid}
        command = [str(self.program()), "-q", str(self._folder / "pgbouncer.ini")]
        self._process = subprocess.Popen(command, cwd="/", stderr=subprocess.DEVNULL, **as_whom)  # type: ignore[call-overload]
        until(self._listens, "PgBouncer listens", within=10)

    def end(self, number: int = signal.SIGKILL) -> None:
        """End it, with every connection through it."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(10)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0


def _ask(server: Server, query: str) -> Any:
    with psycopg.connect(server.embedded.dsn(), autocommit=True, connect_timeout=10) as connection:
        row = connection.execute(query).fetchone()
    return row and row[0]


def _socket_folder_of(server: Server) -> str:
    """Where its socket is, or will be: known before its first start, so that addresses can be written down."""
    cluster = server.embedded._cluster  # noqa: SLF001 (the address of a standby that has not been made yet)
    cluster.folder.mkdir(parents=True, exist_ok=True)
    state = cluster.state()
    return state.socket_folder if state else str(cluster._socket_folder())  # noqa: SLF001


def _give_away(folder: Path, *, like: Path) -> None:
    """Make everything in it the property of the owner of the other: a backup made by root is root's."""
    owner = like.stat()
    for path in (folder, *folder.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
    folder.chmod(0o700)
