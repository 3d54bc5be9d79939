"""The PostgreSQL that everything is measured on: one server for a run, a database of its own for each measurement."""

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from leasehold.db.migrations.migrate import migrate
from leasehold.embedded import EmbeddedServer

# Stock settings otherwise. What the suite itself asks of the server costs every contestant the same.
SETTINGS = {"fsync": True, "synchronous_commit": True, "min_wal_size": "1GB"}
"""`min_wal_size` only keeps files: a server that is not brand-new has them, see `age`."""
PRELOADED = {"shared_preload_libraries": "pg_stat_statements"}
SHOWN = (
    "server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size",
    "min_wal_size", "checkpoint_timeout", "wal_compression", "autovacuum", "max_connections",
    "shared_preload_libraries",
)  # fmt: skip


class Server:
    """Makes databases from templates, and says what the server has done."""

    def __init__(self, embedded: EmbeddedServer) -> None:
        self.embedded = embedded
        self.admin = psycopg.connect(self.dsn("postgres"), autocommit=True)
        self.counts_statements = self.value("show shared_preload_libraries") == "pg_stat_statements"
        """Where it cannot, transactions stand for them: the worker sends each statement alone."""
        if self.counts_statements:
            self.admin.execute("create extension if not exists pg_stat_statements")
        self._commits: dict[str, int] = {}

    def dsn(self, database: str) -> str:
        """Every contestant connects over TCP: not every driver can use Unix sockets."""
        return self.embedded.dsn(database, tcp=True)

    def settings(self) -> dict[str, str]:
        """What the server was run with."""
        return {name: str(self.value("select current_setting(%s)", name)) for name in SHOWN}

    @property
    def pid(self) -> int:
        """The process that all others of the server descend from."""
        return int((self.embedded.data / "postmaster.pid").read_text().split()[0])

    def value(self, query: str, *args: object) -> Any:
        """The only value of a query."""
        row = self.admin.execute(query, args).fetchone()
        assert row is not None
        return row[0]

    def exists(self, name: str) -> bool:
        return bool(self.value("select exists (select from pg_database where datname = %s)", name))

    def create(self, name: str, template: str = "template0") -> str:
        """A new database, in place of an old one of that name. Its pages go through the WAL, so that no page of it is
        written there as a whole when it is first changed: all that follows is the contestant's own."""
        self.drop(name)
        create = sql.SQL("create database {} template {} strategy wal_log")
        self.admin.execute(create.format(sql.Identifier(name), sql.Identifier(template)))
        return self.dsn(name)

    def drop(self, name: str) -> None:
        self.admin.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))

    def leasehold(self, name: str) -> str:
        """A new database with our schema."""
        if not self.exists("t_leasehold"):
            migrate(self.create("t_leasehold"))
        return self.create(name, "t_leasehold")

    @contextmanager
    def connect(self, name: str) -> Iterator[psycopg.Connection]:
        """A superuser's connection, in our schema."""
        options = "-c search_path=leasehold,public"
        with psycopg.connect(self.dsn(name), autocommit=True, options=options) as connection:
            yield connection

    def lsn(self) -> int:
        """Bytes of WAL written so far."""
        return int(self.value("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"))

    def checkpoint(self) -> None:
        """So that none comes soon by itself."""
        self.admin.execute("checkpoint")

    def age(self) -> None:
        """Let the server make its files of WAL now. A new one makes each when it is needed, 16 MB of zeros and a flush,
        and all who write wait 30 ms for it, twice a second in a drain; later it uses the old ones again."""
        message = "select pg_logical_emit_message(false, 'suite', repeat('x', 1000000)) from generate_series(1, 500)"
        for _ in range(2):
            self.admin.execute(message)
            self.checkpoint()

    def forget_statements(self) -> None:
        if self.counts_statements:
            self.admin.execute("select pg_stat_statements_reset()")
        self._commits = dict(self.admin.execute("select datname, xact_commit from pg_stat_database").fetchall())

    def statements(self, name: str) -> int:
        """How many a database was sent since they were last forgotten; the suite's own are marked."""
        if not self.counts_statements:
            time.sleep(1.5)
            return self.commits(name) - self._commits.get(name, 0)
        counted = """select coalesce(sum(s.calls), 0) from pg_stat_statements s join pg_database d on d.oid = s.dbid
            where d.datname = %s and s.toplevel and s.query not like '%%/*suite*/%%'"""
        return int(self.value(counted, name))

    def commits(self, name: str) -> int:
        """How many transactions of a database have been committed. It may lag by a second."""
        return int(self.value("select xact_commit from pg_stat_database where datname = %s", name))


@contextmanager
def folder() -> Iterator[Path]:
    """A place for the server. Its watcher may look there once more after its end, and so make a folder anew."""
    place = Path(tempfile.mkdtemp(prefix="leasehold-bench-"))
    try:
        yield place
    finally:
        deadline = time.monotonic() + 5
        while place.exists() and time.monotonic() < deadline:
            shutil.rmtree(place, ignore_errors=True)
            time.sleep(0.2)


@contextmanager
def started(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[Server]:
    """The server, for as long as it is needed."""
    library = EmbeddedServer(folder).bin_dir.parent.glob("lib/**/pg_stat_statements.so")
    wanted = {**SETTINGS, **(PRELOADED if any(library) else {}), **(settings or {})}
    with EmbeddedServer(folder, settings=wanted, tcp=True) as embedded:
        server = Server(embedded)
        try:
            server.age()
            yield server
        finally:
            server.admin.close()
