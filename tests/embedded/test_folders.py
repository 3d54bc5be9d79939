"""Strange paths, and as whom the server runs."""

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from faults.waiting import until
from leasehold.embedded import EmbeddedServer
from leasehold.errors import EmbeddedError

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes to another user; we are not root")
STRANGER = 54321
NOBODY = pwd.getpwnam("nobody").pw_uid
NO_CAPABILITY, READ_SEARCH, OVERRIDE = 0, 1 << 2, 1 << 1


def setpriv(uid, *options):
    # Through env, because up to its first exec setpriv still has the capabilities of root.
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *options, "env"]


def as_user(uid):
    """How to run our interpreter as that user: if it is out of its reach, with what it takes to get there."""
    plain = setpriv(uid)
    command = [*plain, sys.executable, "-c", "import psycopg"]
    if subprocess.run(command, check=False, cwd="/", capture_output=True).returncode == 0:
        return plain
    return setpriv(uid, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")


def capabilities(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff"))


def parents(path):
    return {str(parent): (parent.stat().st_mode, parent.stat().st_uid) for parent in path.parents}


@pytest.mark.parametrize(
    "name",
    ["with space", 'it\'s "quoted"', "Größe-日本", "a,b;c=d&e%20f", "$HOME `id` \\ #"],
)
def test_any_path_works(lab, query, name):
    lab.home = lab.home / name / "home"
    with lab.server() as server:
        server.ensure_database("app")
        assert query(server.dsn("app"), "select 1") == 1


def test_a_very_deep_path_works(lab, query):
    lab.home = lab.home.joinpath(*["quite-a-long-name"] * 15)
    assert len(str(lab.home)) > 250
    with lab.server() as server:
        assert query(server.dsn(), "select 1") == 1


def test_a_relative_home_is_relative_to_where_it_was_named(tmp_path, monkeypatch, query):
    monkeypatch.chdir(tmp_path)
    with EmbeddedServer() as server:
        monkeypatch.chdir("/")
        assert server.home == tmp_path / ".leasehold"
        server.start()
        assert query(server.dsn(), "select 1") == 1
    assert (tmp_path / ".leasehold" / ".gitignore").read_text() == "*\n"


def test_only_the_owner_gets_at_the_files(lab):
    with lab.server() as server:
        sockets = Path(server.dsn().partition("host=")[2].partition("&")[0])
        private = [lab.data, sockets, server.log, *lab.folder.glob("*.lock"), lab.folder / "server.json"]
        assert {path.name: path.stat().st_mode & 0o077 for path in private if path.stat().st_mode & 0o077} == {}
    assert not sockets.exists()


def test_a_socket_folder_of_another_user_is_not_used(lab, query):
    with lab.server() as server:
        dsn = server.dsn()
    squatted = Path(dsn.partition("host=")[2].partition("&")[0])
    squatted.mkdir()
    squatted.chmod(0o777)
    try:
        with lab.server() as server:
            assert server.dsn() != dsn
            assert query(server.dsn(), "select 1") == 1
    finally:
        squatted.rmdir()


@root_only
def test_root_below_a_closed_folder(open_lab, query):
    lab = open_lab
    closed = lab.home / "closed"
    closed.mkdir(parents=True)
    closed.chmod(0o700)
    lab.home = closed / "deeper" / "home"
    lab.home.mkdir(parents=True)
    before = parents(lab.home / "x")
    with lab.server() as server:
        assert query(server.dsn(), "select 1") == 1
        assert Path(f"/proc/{lab.postmaster()}").stat().st_uid != 0
        assert capabilities(lab.postmaster()) == READ_SEARCH
        query(server.dsn(), "checkpoint")
    assert parents(lab.home / "x") == before


@root_only
def test_root_in_an_open_folder_keeps_no_capability(open_lab):
    with open_lab.server() as server:
        if not all(parent.stat().st_mode & 0o001 for parent in server.bin_dir.parents):
            pytest.skip(f"{server.bin_dir} is itself below a closed folder")
        assert capabilities(open_lab.postmaster()) == NO_CAPABILITY


@root_only
def test_root_of_a_container_without_read_search(lab):
    user = lab.user(prefix=["setpriv", "--bounding-set=-dac_read_search"])
    assert "dsn" in user.answer()
    assert capabilities(lab.postmaster()) == OVERRIDE


@root_only
def test_root_without_any_way_in(lab):
    lab.home.mkdir(mode=0o700)
    user = lab.user(prefix=["setpriv", "--bounding-set=-dac_read_search,-dac_override"])
    error = user.answer()["error"]
    assert str(lab.home) in error
    assert "Permission denied" in error
    assert "CAP_DAC_READ_SEARCH" in error


@root_only
def test_an_ordinary_user(open_lab, open_folder):
    """The user has its own server; root may join it, and it goes on as that user's."""
    os.chown(open_folder, NOBODY, NOBODY)
    user = open_lab.user(prefix=as_user(NOBODY), version=str(EmbeddedServer().bin_dir))
    answer = user.answer()
    assert "error" not in answer
    master = open_lab.postmaster()
    assert Path(f"/proc/{master}").stat().st_uid == NOBODY
    assert [Path(f"/proc/{pid}").stat().st_uid for pid in open_lab.watchers()] == [NOBODY]
    with open_lab.server() as server:
        server.ensure_database("app")
        assert server.dsn() == answer["dsn"]
        user.kill()
        assert open_lab.postmaster() == master
    until(open_lab.gone, within=5)
    with open_lab.server():
        assert Path(f"/proc/{open_lab.postmaster()}").stat().st_uid == NOBODY


@root_only
def test_an_ordinary_user_killed(open_lab, open_folder):
    os.chown(open_folder, NOBODY, NOBODY)
    version = str(EmbeddedServer().bin_dir)
    user = open_lab.user(prefix=as_user(NOBODY), version=version)
    assert "dsn" in user.answer()
    user.kill()
    until(open_lab.gone, within=5)


@root_only
def test_a_user_without_a_name(open_lab, open_folder):
    """PostgreSQL itself refuses to make a data folder for such a one: at least we say what helps."""
    os.chown(open_folder, STRANGER, STRANGER)
    version = str(EmbeddedServer().bin_dir)
    user = open_lab.user(prefix=as_user(STRANGER), version=version)
    assert "has an entry in /etc/passwd" in user.answer()["error"]


@root_only
def test_other_users_do_not_get_in(open_lab):
    with open_lab.server(tcp=True) as server:
        psql = [*setpriv(STRANGER), server.bin_dir / "psql", "-wXAtc", "select 1"]
        done = subprocess.run([*psql, server.dsn()], capture_output=True, text=True, check=False, cwd="/")
        assert done.returncode == 2
        assert "Permission denied" in done.stderr
        tcp = server.dsn(tcp=True)
        bare = tcp.replace(tcp.partition("postgres:")[2].partition("@")[0], "")
        done = subprocess.run([*psql, bare], capture_output=True, text=True, check=False, cwd="/")
        assert "no password supplied" in done.stderr


@root_only
def test_a_home_of_root_is_refused_to_others(open_lab):
    with open_lab.server() as server:
        version = str(server.bin_dir)
    user = open_lab.user(prefix=as_user(STRANGER), version=version)
    assert "cannot use" in (error := user.answer()["error"])
    assert str(open_lab.home) in error


def test_data_of_another_major_is_refused(lab):
    with lab.server():
        pass
    until(lab.gone)
    (lab.data / "PG_VERSION").write_text("14\n")
    with pytest.raises(EmbeddedError, match="was made by PostgreSQL 14"):
        lab.server().start()


def test_a_folder_that_is_no_data_folder_is_refused(lab):
    with lab.server():
        pass
    until(lab.gone)
    (lab.data / "PG_VERSION").unlink()
    with pytest.raises(EmbeddedError, match="no data folder of PostgreSQL"):
        lab.server().start()


def test_a_line_break_in_the_path_is_refused(lab):
    lab.home = lab.home / "new\nline"
    with pytest.raises(EmbeddedError, match="line break"):
        lab.server()


def test_a_home_that_is_a_file_is_refused(lab):
    lab.home.write_text("")
    with pytest.raises(EmbeddedError, match="cannot use"):
        lab.server().start()
    lab.home.unlink()
