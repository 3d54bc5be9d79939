"""The databases of the tests.

`LEASEHOLD_EMBEDDED` chooses the PostgreSQL that is started for a run; `LEASEHOLD_TEST_DSN`, the URI of a
superuser, names one that is running already. Where memory allows, everything temporary is kept in it: to copy a
database for a test takes a twentieth of the time that a disk needs.
"""

import atexit
import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote, urlsplit

import psycopg
import pytest
from psycopg import sql

from leasehold.embedded import EmbeddedServer, find_binaries
from leasehold.errors import EmbeddedError

_MEMORY = "/dev/shm"  # noqa: S108 (pytest makes a folder of its own in it)
_ENOUGH = 6 * 2**30
if "TMPDIR" not in os.environ and os.path.ismount(_MEMORY) and shutil.disk_usage(_MEMORY).free > _ENOUGH:
    os.environ["TMPDIR"] = tempfile.tempdir = _MEMORY  # for this process and for those it starts

# What workers note about the jobs that they run, apart from that of real workers on this machine.
os.environ["LEASEHOLD_RUN_DIR"] = tempfile.mkdtemp(prefix="leasehold-run-")
atexit.register(shutil.rmtree, os.environ["LEASEHOLD_RUN_DIR"], ignore_errors=True)

# A shell starts what it runs in the background with SIGINT ignored, and children inherit that: those of the tests are
# to be interrupted whichever way the tests were started.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

EXTERNAL = os.environ.get("LEASEHOLD_TEST_DSN")
# LEASEHOLD_TEST_DURABLE=1: with the settings of a server that matters, and of bench. In memory it takes no longer. Only
# the tests of `leasehold doctor` want something to complain of.
_DURABLE = bool(os.environ.get("LEASEHOLD_TEST_DURABLE"))
SETTINGS = {"fsync": _DURABLE, "full_page_writes": _DURABLE, "max_connections": 300}


class Server(Protocol):
    """What the tests need of a PostgreSQL."""

    def dsn(self, database: str) -> str: ...


@dataclass(frozen=True)
class ExternalServer:
    uri: str

    def dsn(self, database: str) -> str:
        return urlsplit(self.uri)._replace(path="/" + quote(database, safe="")).geturl()


def pytest_report_header() -> str:
    if EXTERNAL:
        with psycopg.connect(EXTERNAL) as connection:
            return f"postgresql: {connection.info.parameter_status('server_version')} (LEASEHOLD_TEST_DSN)"
    try:
        binaries = find_binaries()
    except EmbeddedError as error:
        return f"postgresql: {error}"
    return f"postgresql: {binaries.version} ({binaries.bin_dir})"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the run, whose xdist workers share it."""
    if EXTERNAL:
        yield ExternalServer(EXTERNAL)
        return
    base = tmp_path_factory.getbasetemp()
    home = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "server"
    with EmbeddedServer(home, settings=SETTINGS) as embedded:
        yield embedded


@dataclass(frozen=True)
class Admin:
    """Makes and drops databases."""

    server: Server
    connection: psycopg.Connection

    @contextmanager
    def database(self, template: str = "template0") -> Iterator[str]:
        name = f"test_{uuid.uuid4().hex}"
        # Faster by half in memory than by way of the WAL, which counts where there are thousands.
        create = sql.SQL("create database {} template {} strategy file_copy")
        self.connection.execute(create.format(sql.Identifier(name), sql.Identifier(template)))
        try:
            yield name
        finally:
            drop = sql.SQL("drop database if exists {} with (force)")
            self.connection.execute(drop.format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def admin(server: Server) -> Iterator[Admin]:
    """A superuser's connection to the server."""
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
        yield Admin(server, connection)


@pytest.fixture(scope="session")
def migrated(admin: Admin) -> Iterator[str]:
    """The name of a migrated database, for cloning only: no session may be connected to a template."""
    from leasehold.db.migrations.migrate import migrate  # noqa: PLC0415 (only the tests with a schema need it)

    with admin.database() as name:
        migrate(admin.server.dsn(name))
        yield name


@pytest.fixture
def empty_dsn(admin: Admin) -> Iterator[str]:
    """The address of a new, empty database."""
    with admin.database() as name:
        yield admin.server.dsn(name)


@pytest.fixture
def dsn(admin: Admin, migrated: str) -> Iterator[str]:
    """The address of a new database with our schema."""
    with admin.database(template=migrated) as name:
        yield admin.server.dsn(name)
