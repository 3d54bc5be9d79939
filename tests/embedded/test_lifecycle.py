import asyncio
import os
import signal
import time

import asyncpg
import pytest
import sqlalchemy

from faults.waiting import until
from leasehold.errors import EmbeddedError
from tests.timing import bound


def test_starts_joins_and_stops(lab, query, record_property):
    begin = time.monotonic()
    server = lab.server().start()
    took = time.monotonic() - begin
    record_property("start_seconds", round(took, 3))
    print(f"initdb and start: {took:.2f} s")
    assert took < bound(15)
    assert query(server.dsn(), "select 1") == 1
    assert query(server.dsn(), "select current_setting('listen_addresses')") == ""
    assert query(server.dsn(), "select current_setting('server_version_num')::int / 10000") == server.major
    master = lab.postmaster()

    other = lab.server().start()
    assert other.dsn() == server.dsn()
    server.close()
    assert lab.postmaster() == master, "one user is left"
    other.close()
    assert not lab.running(), "the last user's close waits for the end"
    until(lab.gone, within=5)


def test_two_processes_share_it(lab, query):
    first, second = lab.user(), lab.user()
    assert first.answer() == (answer := second.answer())
    first.leave()
    assert query(answer["dsn"], "select 1") == 1
    second.leave()
    assert not lab.running()


def test_ten_at_once_start_one_server(lab, query):
    users = [lab.user() for _ in range(10)]
    dsns = {user.answer()["dsn"] for user in users}
    assert len(dsns) == 1
    assert query(dsns.pop(), "select 1") == 1
    assert len(lab.watchers()) == 1
    for user in users:
        user.leave()
    until(lab.gone, within=5)
    assert lab.folder.joinpath("server.log").read_text().count("starting PostgreSQL") == 1


def test_coming_and_going_never_finds_a_stopped_server(lab):
    script = """
import random, sys
from leasehold.embedded import EmbeddedServer
for turn in range(8):
    with EmbeddedServer(sys.argv[1]) as server:
        server.ensure_database(f"churn{random.randrange(4)}")
"""
    users = [lab.user(script=script) for _ in range(4)]
    for user in users:
        assert user.process.wait(100) == 0
    until(lab.gone, within=5)


def test_data_survives_and_the_address_stays(lab, query):
    with lab.server() as server:
        dsn = server.dsn("kept")
        server.ensure_database("kept")
        query(dsn, "create table t as select 42 as x")
    with lab.server() as server:
        server.ensure_database("kept")
        assert server.dsn("kept") == dsn
        assert query(dsn, "select x from t") == 42


def test_start_again_keeps_the_hold(lab):
    server = lab.server().start()
    assert server.start() is server
    server.close()
    server.close()
    assert not lab.running()


@pytest.mark.parametrize("name", ["plain", "with \"quotes\" and 'more'", "Ünïcödé %s", "a,b=c"])
def test_ensure_database(lab, query, name):
    with lab.server() as server:
        server.ensure_database(name)
        server.ensure_database(name)
        assert query(server.dsn(name), "select current_database()") == name


def test_ensure_database_by_many_at_once(lab):
    script = """
import sys
from leasehold.embedded import EmbeddedServer
with EmbeddedServer(sys.argv[1]) as server:
    server.ensure_database("wanted")
"""
    with lab.server():
        users = [lab.user(script=script) for _ in range(6)]
        assert [user.process.wait(60) for user in users] == [0] * 6


def test_ensure_database_refuses_an_impossible_name(lab):
    with lab.server() as server, pytest.raises(EmbeddedError, match="63 bytes"):
        server.ensure_database("x" * 64)


def test_settings_apply(lab, query):
    wanted = {"fsync": False, "max_connections": 33, "shared_preload_libraries": "auto_explain"}
    with lab.server(settings=wanted) as server:
        for name, value in {"fsync": "off", "max_connections": "33", "work_mem": "4MB"}.items():
            assert query(server.dsn(), f"select current_setting('{name}')") == value
        assert query(server.dsn(), "show auto_explain.log_min_duration") == "-1"
    with lab.server(settings={"work_mem": "8MB"}) as server:
        assert query(server.dsn(), "select current_setting('fsync')") == "on"


def test_other_settings_are_refused_while_others_use_it(lab):
    user = lab.user(settings={"work_mem": "8MB"})
    user.answer()
    lab.server().start()
    lab.server(settings={"work_mem": "8MB"}).start()
    with pytest.raises(EmbeddedError, match=r"work_mem='8MB', not '9MB'"):
        lab.server(settings={"work_mem": "9MB"}).start()


def test_other_settings_restart_a_server_that_was_left(lab, query):
    """Its last user was killed, and the watcher has not got round to it, or has."""
    user = lab.user(settings={"work_mem": "8MB"})
    user.answer()
    user.kill()
    server = lab.server(settings={"work_mem": "9MB"}).start()
    assert query(server.dsn(), "select current_setting('work_mem')") == "9MB"


@pytest.mark.parametrize("name", ["port", "listen_addresses", "no such", "-c"])
def test_settings_that_are_ours_are_refused(lab, name):
    with pytest.raises(EmbeddedError, match="takes no setting"):
        lab.server(settings={name: "1"})


def test_a_failed_start_shows_the_log_and_leaves_nothing(lab):
    with pytest.raises(EmbeddedError, match=r'unrecognized configuration parameter "nonsense"'):
        lab.server(settings={"nonsense": 1}).start()
    until(lab.gone, within=5)
    with lab.server():
        pass


def test_nothing_before_the_start(lab):
    with pytest.raises(EmbeddedError, match="not started"):
        lab.server().dsn()


def test_tcp_needs_the_password(lab, query):
    with lab.server(tcp=True) as server:
        dsn = server.dsn(tcp=True)
        assert query(dsn, "select host(inet_server_addr())") == "127.0.0.1"
        wrong = dsn.replace("postgres:", "postgres:x")
        with pytest.raises(Exception, match="password authentication failed"):
            query(wrong, "select 1")
        assert lab.folder.joinpath("password").stat().st_mode & 0o077 == 0
        lab.server().start()
    assert query(server.start().dsn(), "select 1") == 1


def test_no_tcp_unless_asked_for(lab):
    with lab.server() as server:
        with pytest.raises(EmbeddedError, match="TCP"):
            server.dsn(tcp=True)
        lab.server().start()
        with pytest.raises(EmbeddedError, match="no TCP"):
            lab.server(tcp=True).start()


@pytest.mark.parametrize("tcp", [False, True])
def test_asyncpg_takes_the_address(lab, tcp):
    async def ask(dsn):
        connection = await asyncpg.connect(dsn)
        try:
            return await connection.fetchval("select current_database()")
        finally:
            await connection.close()

    with lab.server(tcp=tcp) as server:
        server.ensure_database("app")
        assert asyncio.run(ask(server.dsn("app", tcp=tcp))) == "app"


def test_sqlalchemy_takes_the_address(lab):
    with lab.server() as server:
        url = server.dsn().replace("postgresql://", "postgresql+psycopg://")
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
        with engine.connect() as connection:
            assert connection.scalar(sqlalchemy.text("select 1")) == 1


def test_the_environment_of_libpq_does_not_matter(lab, monkeypatch):
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGDATA", "PGOPTIONS", "PGSERVICE", "LC_ALL"):
        monkeypatch.setenv(name, "nonsense")
    with lab.server() as server:
        server.ensure_database("app")


def test_control_c_stops_neither_server_nor_watcher(lab, query):
    user = lab.user()
    dsn = user.answer()["dsn"]
    server = lab.server().start()
    master, watchers = lab.postmaster(), lab.watchers()
    os.killpg(user.process.pid, signal.SIGINT)
    user.process.wait(60)
    assert (lab.postmaster(), lab.watchers()) == (master, watchers)
    assert query(dsn, "select 1") == 1
    assert os.getsid(master) not in (os.getsid(0), user.process.pid)
    server.close()
