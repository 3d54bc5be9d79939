import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psycopg
import pytest

from faults.waiting import stays, until
from leasehold.embedded import _processes
from leasehold.errors import EmbeddedError


def test_all_users_killed(lab, query):
    users = [lab.user(), lab.user()]
    for user in users:
        dsn = user.answer()["dsn"]
    for user in users:
        user.kill()
    until(lab.gone, within=5)
    assert not lab.folder.joinpath("server.json").exists()
    server = lab.server().start()
    assert server.dsn() == dsn
    assert query(dsn, "select 1") == 1


def test_a_busy_server_stops_too(lab, query):
    """A connection that outlives all holds does not count as a user."""
    user = lab.user()
    with psycopg.connect(user.answer()["dsn"], autocommit=True) as connection:
        connection.execute("create table t(x int)")
        user.kill()
        until(lab.gone, within=5)


def test_postmaster_killed_while_users_live(lab, query):
    server = lab.server().start()
    query(server.dsn(), "create table t as select 7 as x")
    os.kill(lab.postmaster(), signal.SIGKILL)
    dsn = lab.user().answer()["dsn"]
    assert query(dsn, "select x from t") == 7
    assert "was not properly shut down" in server.log.read_text()


def test_postmaster_killed_with_a_child_that_computes(lab, query):
    server = lab.server().start()
    busy = subprocess.Popen(
        [server.bin_dir / "psql", "-XAtc", "select count(*) from generate_series(1, 1e12)", server.dsn()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    active = "select count(*) from pg_stat_activity where query like '%1e12%' and pid <> pg_backend_pid()"
    until(lambda: query(server.dsn(), active))
    os.kill(lab.postmaster(), signal.SIGKILL)
    assert query(server.start().dsn(), "select 1") == 1
    busy.wait(60)


def test_watcher_killed_and_the_next_user_starts_one(lab):
    first = lab.user()
    first.answer()
    [watcher] = lab.watchers()
    os.kill(watcher, signal.SIGKILL)
    until(lambda: not lab.watchers())
    second = lab.user()
    second.answer()
    assert len(lab.watchers()) == 1
    first.kill()
    second.kill()
    until(lab.gone, within=5)


def test_watcher_killed_and_a_leaving_user_starts_one(lab):
    first, second = lab.user(), lab.user()
    first.answer()
    second.answer()
    os.kill(lab.watchers()[0], signal.SIGKILL)
    until(lambda: not lab.watchers())
    first.leave()
    assert len(lab.watchers()) == 1
    second.kill()
    until(lab.gone, within=5)


def test_watcher_killed_and_the_last_user_stops_the_server(lab):
    user = lab.user()
    user.answer()
    os.kill(lab.watchers()[0], signal.SIGKILL)
    user.leave()
    until(lab.gone, within=5)


def test_everything_killed(lab, query):
    user = lab.user()
    query(user.answer()["dsn"], "create table t as select 7 as x")
    lab.kill_everything()
    assert lab.data.joinpath("postmaster.pid").exists()
    server = lab.server().start()
    assert query(server.dsn(), "select x from t") == 7


def test_stale_pid_that_belongs_to_another_process_now(lab, query):
    """As after a reboot: the pid in the lock files is a live process of the same user."""
    user = lab.user()
    user.answer()
    sockets = _processes.read_state(lab.folder)["socket_folder"]
    lab.kill_everything()
    owner = lab.data.stat().st_uid
    stranger = subprocess.Popen(["sleep", "600"], user=owner if os.geteuid() == 0 else None)
    try:
        stale = [lab.data / "postmaster.pid", *_sockets_locks(sockets)]
        assert len(stale) == 2
        for path in stale:
            lines = path.read_text().splitlines()
            path.write_text("\n".join([str(stranger.pid), *lines[1:]]) + "\n")
        server = lab.server().start()
        assert query(server.dsn(), "select 1") == 1
        server.close()
        assert stranger.poll() is None, "the stranger got no signal"
    finally:
        stranger.kill()
        stranger.wait()


def _sockets_locks(folder):
    return [path for path in Path(folder).iterdir() if path.name.endswith(".lock")]


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_moment_of_the_start(lab, seed):
    chance = random.Random(seed)
    for turn in range(5):
        user = lab.user()
        time.sleep(chance.uniform(0.05, 0.9 if turn == 0 else 0.35))
        user.kill()
    if lab.home.exists() and list(lab.home.glob("pg*")):
        until(lab.gone, within=15)
    with lab.server() as server:
        server.ensure_database("app")
    assert not list(lab.folder.glob("init-*"))


def test_a_forked_child_does_not_keep_it_alive(lab):
    script = """
import os, sys, time
from leasehold.embedded import EmbeddedServer
server = EmbeddedServer(sys.argv[1]).start()
child = os.fork()
if child == 0:
    server.close()
    os.write(1, b"closed\\n")  # in one piece, whatever the parent writes
    time.sleep(600)
os.write(1, f"{child}\\n".encode())
time.sleep(600)
"""
    user = lab.user(script=script)
    assert user.process.stdout is not None
    lines = {user.process.stdout.readline().strip() for _ in range(2)}
    child = int((lines - {"closed"}).pop())
    try:
        stays(lab.running, "the child's close is not the parent's", seconds=0.2)
        user.kill()
        until(lab.gone, within=5)
        assert lab.alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_home_removed_under_a_user_and_made_anew(lab, query):
    old = lab.server().start()
    master, sockets = lab.postmaster(), _processes.read_state(lab.folder)["socket_folder"]
    shutil.rmtree(lab.home)
    new = lab.server().start()
    old.close()
    assert query(new.dsn(), "select 1") == 1
    new.close()
    assert not lab.running()
    # Without its lock file it would go within a minute.
    os.kill(master, signal.SIGQUIT)
    until(lambda: not lab.alive(master))
    shutil.rmtree(sockets)


def test_a_server_started_by_other_means_is_left_alone(open_lab):
    lab = open_lab
    with lab.server() as server:
        pass
    until(lab.gone)
    owner = lab.data.stat()
    foreign = subprocess.Popen(
        [server.bin_dir / "postgres", "-D", lab.data, "-c", "listen_addresses=", "-k", lab.data],
        stderr=subprocess.DEVNULL,
        **({"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if os.geteuid() == 0 else {}),
    )
    until(lambda: _processes.postmaster(lab.data))
    with pytest.raises(EmbeddedError, match="not started by Leasehold"):
        lab.server().start()
    assert foreign.poll() is None
    foreign.send_signal(signal.SIGINT)
    foreign.wait(60)
