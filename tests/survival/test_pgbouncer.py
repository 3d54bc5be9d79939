"""Everything through PgBouncer in transaction mode: no LISTEN, no session state, no prepared statements."""

import asyncio
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from faults.waiting import auntil, until
from leasehold import App
from leasehold.db.migrations.migrate import migrate
from leasehold.embedded import EmbeddedServer
from tests.survival.conftest import ROOT, connect, one, ready, rounds, worker
from tests.survival.tasks import TABLES

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed (CI installs Debian's)")


@contextmanager
def pgbouncer(server: EmbeddedServer, folder: Path, *, mode: str = "transaction") -> Iterator[str]:
    """A PgBouncer in front of the server; yields the DSN of the database `pooled` through it."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    target = server.dsn("pooled", tcp=True).removeprefix("postgresql://")
    login, _, place = target.rpartition("@")
    user, _, password = login.partition(":")
    host, _, server_port = place.partition("/")[0].rpartition(":")
    (folder / "users.txt").write_text(f'"{user}" "{password}"\n')
    (folder / "pgbouncer.ini").write_text(
        f"""[databases]
pooled = host={host} port={server_port} dbname=pooled user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = plain
auth_file = {folder}/users.txt
pool_mode = {mode}
default_pool_size = 5
"""
    )
    command = [str(PGBOUNCER), "-q", str(folder / "pgbouncer.ini")]
    as_whom = {}
    if os.geteuid() == 0:  # it refuses to run as root
        account = pwd.getpwnam("nobody")
        for path in (folder, *folder.iterdir()):
            os.chown(path, account.pw_uid, account.pw_gid)
        as_whom = {"user": account.pw_uid, "group": account.pw_gid}
    process = subprocess.Popen(command, cwd="/", stderr=subprocess.PIPE, **as_whom)
    try:

        def listens() -> bool:
            assert process.poll() is None, process.communicate()
            with closing(socket.socket()) as attempt:
                return attempt.connect_ex(("127.0.0.1", port)) == 0

        until(listens)
        yield f"postgresql://{login}@127.0.0.1:{port}/pooled"
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.timeout(180)
async def test_a_worker_behind_pgbouncer_polls_and_does_all_the_rest(tmp_path: Path) -> None:
    count = rounds(10, 50)
    # Not below pytest's folder, which only its owner may enter; PgBouncer runs as another user.
    short = Path(tempfile.mkdtemp(prefix="leasehold-pgbouncer-"))
    try:
        with EmbeddedServer(tmp_path / "home", tcp=True) as server:
            server.ensure_database("pooled")
            migrate(server.dsn("pooled"))
            sql = connect(server.dsn("pooled"))
            sql.execute("set search_path = public; " + TABLES + "; set search_path = leasehold, public")
            with pgbouncer(server, short) as dsn, worker(dsn, LEASEHOLD_PREPARE="off") as process:
                await ready(sql, 1)
                for _ in range(count):
                    sql.execute("""select enqueue('nap', '{"seconds": 0}')""")
                    await asyncio.sleep(0.31)  # jobs that arrive at any moment between two polls
                sql.execute("""select enqueue('nap', '{"seconds": 12}')""")  # longer than two leases of 5 s
                done = "select count(*) from jobs where state = 'success'"
                await auntil(lambda: one(sql, done) == count + 1)
                assert process.poll() is None
            waits = "select max(extract(epoch from claimed_at - created_at)) from jobs"
            assert one(sql, waits) <= 1.5
            assert one(sql, "select count(*) from attempts") == 0
            sql.close()
    finally:
        shutil.rmtree(short, ignore_errors=True)


@pytest.mark.timeout(180)
async def test_a_pooler_is_found_out_and_named_once(tmp_path: Path) -> None:
    """Without LEASEHOLD_PREPARE=off: nothing fails, and one line of each program names the cure."""
    short = Path(tempfile.mkdtemp(prefix="leasehold-pgbouncer-"))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LEASEHOLD_")}

    def leasehold(dsn: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "leasehold", *arguments, "--dsn", dsn]
        return subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True, timeout=90, check=False)

    try:
        with EmbeddedServer(tmp_path / "home", tcp=True) as server:
            server.ensure_database("pooled")
            migrate(server.dsn("pooled"))
            sql = connect(server.dsn("pooled"))
            with pgbouncer(server, short) as dsn:
                with worker(dsn) as process, App(dsn) as app:
                    await ready(sql, 1)

                    @app.task(kind="nap")
                    def nap(seconds: float) -> None: ...

                    with ThreadPoolExecutor(10) as pool:
                        jobs = list(pool.map(lambda _: nap.enqueue(0), range(200)))
                    done = "select count(*) from jobs where state = 'success'"
                    await auntil(lambda: one(sql, done) == len(jobs))
                    assert process.poll() is None
                    process.terminate()
                    await asyncio.to_thread(process.wait, 60)
                    assert process.stderr is not None
                    said = process.stderr.read()
                assert said.count(b"LEASEHOLD_PREPARE=off") == 1, said.decode()
                assert b"Traceback" not in said
                seen = leasehold(dsn, "doctor", "--listen", "0.2")
                assert "LEASEHOLD_PREPARE=off" in seen.stdout, seen.stdout + seen.stderr
            with pgbouncer(server, short, mode="statement") as dsn:
                refused = leasehold(dsn, "stats")
                assert (refused.returncode, "statement mode" in refused.stderr) == (2, True), refused.stderr
                assert "Traceback" not in refused.stderr
            sql.execute("alter database pooled set default_transaction_isolation = 'serializable'")
            with pgbouncer(server, short) as dsn:
                refused = leasehold(dsn, "stats")
                assert (refused.returncode, "default_transaction_isolation" in refused.stderr) == (2, True)
            sql.close()
    finally:
        shutil.rmtree(short, ignore_errors=True)
