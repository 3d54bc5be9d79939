"""What is done to PostgreSQL, and to the pooler in front of it."""

import errno
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psycopg

from faults.run import Run, Skip
from faults.servers import Pooler, pgbouncer
from faults.waiting import until
from leasehold.errors import EmbeddedError

NAP = ("--kind", "nap", "--payload", '{"seconds": 0.05}')
CLAIMS = "select count(*) from leasehold.events where from_state = 'queued' and to_state = 'running'"

_DISK = 260
"""Megabytes of the disk that is filled up."""


def postgres(run: Run) -> None:
    """The server is killed, or shut down at once, under load, and started again."""
    server = run.serve(max_wal_size="1GB")
    run.expect(leases={"nap": run.lease})
    crew = run.workers(run.size(2, 3), server.dsn)
    clients = run.clients(2, server.dsn, *NAP, "--rate", "50")
    steps = run.plan([
        {
            "what": run.chance.choice(["all", "postmaster", "immediate"]),
            "pause": run.chance.uniform(0.5, 1.5),
            "away": run.chance.uniform(0, run.size(1, 4)),
        }
        for _ in range(run.size(2, 20))
    ])  # fmt: skip
    run.until_done(20)
    back = []
    for step in steps:
        time.sleep(step["pause"])
        run.log.note("kill", who="postgres", how=step["what"])
        server.kill(step["what"])
        time.sleep(step["away"])
        server.start()
        up = time.monotonic()
        run.log.note("restart", who="postgres")
        before = run.ask(CLAIMS)
        until(lambda before=before: run.ask(CLAIMS) > before, "workers are back", within=60)
        back.append(time.monotonic() - up)
    run.finish_clients(clients)
    run.settle(within=120)
    run.facts |= {"kills": len(steps), "slowest return in s": round(max(back), 2)}
    run.check(all(member.alive for member in crew), "a worker did not survive the server")
    run.check(not run.full or max(back) <= 10, f"workers were back only after {max(back):.1f} s")


def enospc(run: Run) -> None:
    """The disk of the server is filled to the last byte under load, and freed."""
    disk = run.folder / "disk"
    _mount(disk)
    run.stack.callback(_unmount, disk)
    server = run.serve(home=disk / "server", max_wal_size="64MB", min_wal_size="32MB", wal_recycle=False)
    run.expect(leases={"nap": run.lease})
    run.workers(2, server.dsn)
    clients = run.clients(2, server.dsn, *NAP, "--rate", "50")
    steps = run.plan([{"what": "fill", "seconds": run.chance.uniform(1, 3)} for _ in range(run.size(1, 10))])
    run.until_done(20)
    full = 0
    for step in steps:
        filler = disk / "filler"
        run.log.note("fill")
        deadline = time.monotonic() + 60
        while not _out_of_space(server.embedded.log):
            _fill(filler)
            _write_a_lot(run)
            if time.monotonic() > deadline:
                break
        full += _out_of_space(server.embedded.log)
        time.sleep(step["seconds"])
        filler.unlink()
        run.log.note("heal")
        server.embedded.log.write_text("")
        # It may have given up itself, which it says by ending.
        with suppress(EmbeddedError):
            server.start()
        until(lambda: _start_again(run), "the server is back", within=60)
        before = run.done()
        run.until_done(before + 5)
    run.finish_clients(clients)
    run.settle(within=120)
    run.facts["times full"] = full
    run.check(full == len(steps), f"the disk was full {full} times, not {len(steps)}")


def pooler(run: Run) -> None:
    """Everything goes through PgBouncer in transaction mode, which is killed and started again under load."""
    if Pooler.program() is None:
        raise Skip("pgbouncer is not installed (CI installs Debian's)")
    server = run.serve(tcp=True)
    run.expect(leases={"nap": run.lease})
    front = run.stack.enter_context(pgbouncer(server, run.folder / "pgbouncer"))
    crew = run.workers(2, front.dsn, LEASEHOLD_PREPARE="off")
    clients = [
        run.fleet.client(f"client-{n}", front.dsn, *NAP, "--rate", "50").start(LEASEHOLD_PREPARE="off")
        for n in range(2)
    ]  # fmt: skip
    steps = run.plan([
        {"what": run.chance.choice(["SIGKILL", "SIGINT", "SIGTERM"]), "pause": run.chance.uniform(0.5, 1.5)}
        for _ in range(run.size(3, 40))
    ])  # fmt: skip
    run.until_done(20)
    for step in steps:
        time.sleep(step["pause"])
        run.log.note("restart", who="pgbouncer", how=step["what"])
        front.end(signal.Signals[step["what"]])
        front.start()
    run.finish_clients(clients)
    run.settle(within=120)
    run.facts["restarts"] = len(steps)
    run.check(all(member.alive for member in crew), "a worker did not survive the pooler")


def _mount(disk: Path) -> None:
    disk.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        raise Skip("a small disk can be mounted by root only")
    options = f"size={_DISK}m,mode=755"
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", options, "leasehold-faults", str(disk)], capture_output=True, check=False
    )
    if done.returncode:
        raise Skip(f"a small disk cannot be mounted here: {done.stderr.decode().strip()}")


def _unmount(disk: Path) -> None:
    umount = shutil.which("umount")
    if umount is not None:
        subprocess.run([umount, "-l", str(disk)], check=False, capture_output=True)


def _fill(filler: Path) -> None:
    """Write until there is no room."""
    chunk = b"\1" * 65_536
    with suppress(OSError), filler.open("ab", buffering=0) as file:
        while chunk:
            try:
                file.write(chunk)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                chunk = chunk[: len(chunk) // 2]


def _write_a_lot(run: Run) -> None:
    """Make the server ask for more room, for its log of changes above all."""
    with suppress(psycopg.Error), run.where() as connection:
        connection.execute("create table if not exists public.ballast (x text)")
        connection.execute("insert into public.ballast select repeat(md5(g::text), 60) from generate_series(1, 4000) g")
        connection.execute("drop table public.ballast")
    time.sleep(0.05)


def _out_of_space(log: Path) -> bool:
    return "No space left on device" in log.read_text(errors="replace")


def _start_again(run: Run) -> bool:
    try:
        run.server.start()
        run.where().close()
    except (EmbeddedError, psycopg.Error):
        time.sleep(0.2)
        return False
    return True
