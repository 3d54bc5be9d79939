"""A pair of servers under Patroni and etcd, which decide who is the primary: switchovers and failovers under load."""

import json
import os
import pwd
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import psutil
import psycopg

from faults.run import Run, Skip
from faults.servers import DATABASE, free_port
from faults.waiting import until
from leasehold.db.migrations.migrate import migrate

NAP = ("--kind", "nap", "--payload", '{"seconds": 0.05}', "--rate", "40")
CLAIMS = "select coalesce(max(seq), 0) from leasehold.events where to_state = 'running' and from_state = 'queued'"
PROGRAMS = ("patroni", "etcd")
# Debian's Patroni knows the versions of PostgreSQL of its own release.
POSTGRES = ("/usr/lib/postgresql/15/bin", "/usr/lib/postgresql/16/bin", "/usr/lib/postgresql/17/bin")


def patroni(run: Run) -> None:
    """Switchovers, and primaries killed together with their Patroni."""
    if not run.full:
        raise Skip("it takes minutes: --size full")
    crew = Trio(run)
    run.stack.callback(crew.close)
    run.where = crew.connect
    crew.start()
    run.expect(leases={"nap": run.lease})
    workers = run.workers(3, crew.dsn)
    clients = run.clients(2, crew.dsn, *NAP)
    steps = run.plan([
        {"what": what, "pause": run.chance.uniform(1, 3)} for what in run.chance.sample(["switchover", "kill"] * 3, 6)
    ])  # fmt: skip
    gaps: dict[str, list[float]] = {"switchover": [], "kill": []}
    for step in steps:
        run.until_done(run.done() + 20)
        time.sleep(step["pause"])
        leader = crew.leader()
        run.log.note(step["what"], who=leader.name)
        began, before = time.monotonic(), run.ask(CLAIMS)
        crew.switch_over(leader) if step["what"] == "switchover" else leader.kill()
        until(lambda leader=leader: crew.leader() is not leader, "another leads", within=120, pause=0.1)
        until(lambda before=before: run.ask(CLAIMS) > before, "workers are back", within=120)
        gaps[step["what"]].append(time.monotonic() - began)
        leader.start()
        until(crew.whole, "the standby is synchronous again", within=120, pause=0.2)
    run.finish_clients(clients)
    run.settle(within=180)
    run.facts |= {f"slowest {what} in s": round(max(times), 1) for what, times in gaps.items() if times}
    run.check(all(member.alive for member in workers), "a worker did not survive")


class Node:
    """One server and its Patroni."""

    def __init__(self, name: str, folder: Path, etcd: int, bin_dir: str) -> None:
        self.name = name
        self.port, self.rest = free_port(), free_port()
        self._folder = folder / name
        self._folder.mkdir()
        self._data = self._folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        settings = {
            "scope": "leasehold",
            "name": name,
            "restapi": {"listen": f"127.0.0.1:{self.rest}", "connect_address": f"127.0.0.1:{self.rest}"},
            "etcd3": {"host": f"127.0.0.1:{etcd}"},
            "bootstrap": {
                "dcs": {
                    "ttl": 20, "loop_wait": 2, "retry_timeout": 3, "synchronous_mode": True,
                    "postgresql": {"use_pg_rewind": True,
                                   "parameters": {"max_connections": 200, "wal_log_hints": "on"}},
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, {"auth-host": "trust"}, {"auth-local": "trust"}],
                "pg_hba": ["host replication all 127.0.0.1/32 trust", "host all all 127.0.0.1/32 trust",
                           "local all all trust"],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self.port}", "connect_address": f"127.0.0.1:{self.port}",
                "data_dir": str(self._data), "bin_dir": bin_dir, "pgpass": str(self._folder / "pgpass"),
                "parameters": {"unix_socket_directories": str(self._folder)},
                "authentication": {"superuser": {"username": "postgres", "password": "trusted"},
                                   "replication": {"username": "replicator", "password": "trusted"}},
            },
        }  # fmt: skip
        (self._folder / "patroni.yml").write_text(json.dumps(settings))  # JSON is YAML

    def start(self) -> None:
        """Start Patroni, which starts the server; nothing if it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        command = [str(shutil.which("patroni")), str(self._folder / "patroni.yml")]
        with (self._folder / "patroni.out").open("ab") as output:
            self._process = subprocess.Popen(command, cwd="/", stdout=output, stderr=output, **_account(self._folder))

    def kill(self) -> None:
        """Kill Patroni and the whole server."""
        victims = [process for process in psutil.process_iter() if self._is_ours(process)]
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for process in victims:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(victims, timeout=20)

    def ask(self, path: str, body: dict[str, Any] | None = None) -> int:
        """The status of an answer of Patroni; 0 if there is none."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"http://127.0.0.1:{self.rest}{path}", data=data)
        try:
            with urlopen(request, timeout=60) as answer:  # noqa: S310
                return int(answer.status)
        except URLError as error:
            return int(getattr(error, "code", 0))
        except OSError:
            return 0

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.name().startswith("postgres") and process.cwd() == str(self._data)
        except psutil.Error:
            return False


class Trio:
    """Two nodes and the etcd that they ask."""

    def __init__(self, run: Run) -> None:
        missing = [name for name in PROGRAMS if shutil.which(name) is None]
        bin_dir = next((path for path in POSTGRES if Path(path, "postgres").exists()), None)
        if missing or bin_dir is None:
            raise Skip(f"not installed (Debian's): {', '.join(missing) or 'postgresql-15'}")
        self._folder = run.folder
        self._etcd: subprocess.Popen[bytes] | None = None
        self._port, self._peer = free_port(), free_port()
        self.nodes = [Node(name, run.folder, self._port, bin_dir) for name in ("a", "b")]
        ports = ",".join(str(node.port) for node in self.nodes)
        place = f"host=127.0.0.1,127.0.0.1 port={ports} user=postgres password=trusted target_session_attrs=read-write"
        self._place = place
        self.dsn = f"{place} dbname={DATABASE}"

    def start(self) -> None:
        """Start everything; make the database."""
        url, peer = f"http://127.0.0.1:{self._port}", f"http://127.0.0.1:{self._peer}"
        command = [str(shutil.which("etcd")), "--data-dir", str(self._folder / "etcd"), "--listen-client-urls", url,
                   "--advertise-client-urls", url, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                   "--initial-cluster", f"default={peer}"]  # fmt: skip
        with (self._folder / "etcd.out").open("ab") as output:
            self._etcd = subprocess.Popen(command, stdout=output, stderr=output)
        for node in self.nodes:
            node.start()
        until(self.whole, "Patroni has a primary and a synchronous standby", within=120, pause=0.2)
        with psycopg.connect(f"{self._place} dbname=postgres", autocommit=True) as connection:
            connection.execute(f"create database {DATABASE}")
        migrate(self.dsn)
        with self.connect() as connection:
            connection.execute("select leasehold.history(true)")

    def connect(self) -> psycopg.Connection[Any]:
        """A connection to the server that takes writes."""
        return psycopg.connect(self.dsn, autocommit=True, connect_timeout=5)

    def leader(self) -> Node:
        """The primary, as Patroni sees it."""
        found: Node = until(
            lambda: next((node for node in self.nodes if node.ask("/primary") == 200), None), "one leads", within=120
        )
        return found

    def whole(self) -> bool:
        """Whether one is the primary and the other its synchronous standby."""
        return sorted((node.ask("/primary"), node.ask("/sync")) for node in self.nodes) == [(200, 503), (503, 200)]

    def switch_over(self, leader: Node) -> None:
        """Have the other one lead."""
        (other,) = (node for node in self.nodes if node is not leader)
        leader.ask("/switchover", {"leader": leader.name, "candidate": other.name})

    def close(self) -> None:
        """Kill all of it."""
        for node in self.nodes:
            node.kill()
        if self._etcd is not None:
            self._etcd.send_signal(signal.SIGKILL)
            self._etcd.wait()


def _account(folder: Path) -> dict[str, Any]:
    """As whom to run: PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return {}
    account = pwd.getpwnam("postgres")
    for path in (folder, *folder.iterdir()):
        os.chown(path, account.pw_uid, account.pw_gid)
    return {"user": account.pw_uid, "group": account.pw_gid}
