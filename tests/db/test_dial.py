"""Where connections go, and what is said when none can be opened."""

import asyncio
import os
import resource
from pathlib import Path

import pytest
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from leasehold._aio import run_blocking
from leasehold.db.connections.dial import Dialer
from leasehold.db.connections.io import ask, close
from leasehold.embedded import EmbeddedServer
from leasehold.errors import ConfigError, DatabaseUnavailable


def test_a_process_without_free_descriptors_is_named_as_the_cause(server) -> None:
    dialer = Dialer(server.dsn("postgres"), name="test")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        with pytest.raises(DatabaseUnavailable) as caught:
            run_blocking(dialer.connect(blocking=True))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert "Too many open files" in str(caught.value)
    assert "ulimit -n" in str(caught.value.hint)
    assert not caught.value.sent


READ_EACH_TIME = {b"require_auth", b"sslcertmode", b"gsslib", b"min_protocol_version", b"max_protocol_version"}
"""As docs/guarantees.md says."""


@pytest.mark.parametrize("blocking", [True, False])
async def test_what_is_done_to_the_environment_later_changes_no_connection(
    dsn: str, blocking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialer = Dialer(dsn, name="test")
    for option in pq.Conninfo.get_defaults():
        if option.envvar and option.keyword not in READ_EACH_TIME:
            monkeypatch.setenv(option.envvar.decode(), "?")
    if blocking:
        connection = await asyncio.to_thread(run_blocking, dialer.connect(blocking=True))
    else:
        connection = await dialer.connect(blocking=False)
    assert connection.info.dbname == conninfo_to_dict(dsn)["dbname"]
    await close(connection)


async def test_a_server_that_asks_for_a_password_is_given_that_of_the_dsn(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "home", tcp=True) as server:
        connection = await Dialer(server.dsn("postgres", tcp=True), name="test").connect(blocking=False)
        assert connection.pgconn.used_password
        await close(connection)


async def test_a_service_and_the_environment_are_read_once(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = tmp_path / "services"
    parts = conninfo_to_dict(dsn)
    services.write_text("[mine]\n" + "".join(f"{name}={value}\n" for name, value in parts.items() if name != "dbname"))
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    monkeypatch.setenv("PGHOST", "the service goes before the environment")
    monkeypatch.setenv("PGDATABASE", str(parts["dbname"]))
    monkeypatch.setenv("PGOPTIONS", "-c search_path=pg_catalog")
    dialer = Dialer("service=mine", name="test")
    assert str(parts["dbname"]) in repr(dialer)
    services.unlink()
    monkeypatch.setenv("PGDATABASE", "none")
    monkeypatch.delenv("PGOPTIONS")
    connection = await dialer.connect(blocking=False)
    assert await ask(connection, "select current_database()::text, current_setting('search_path')") == [
        (parts["dbname"], "pg_catalog")
    ]
    await close(connection)


def test_a_service_that_there_is_not_is_an_error_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSERVICE", "none")
    with pytest.raises(ConfigError, match='"none"') as caught:
        Dialer("postgresql://user:secret@host/database", name="test")
    assert "secret" not in str(caught.value)
