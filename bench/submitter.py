"""What a submission costs between HTTP and the database, by the number of clients that submit at the same time.

    python bench/submitter.py [--lanes 2] [--pause 0] [--jobs 1600]

No HTTP: the coalescer of an API server alone, on a PostgreSQL of its own (fsync and synchronous_commit on). Each client
submits its next job when the one before is answered. `--pause` waits so many milliseconds before each first statement.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import uvloop

from leasehold.db.migrate import migrate
from leasehold.db.pool import Database
from leasehold.embedded import EmbeddedServer
from leasehold.http.schemas import JobRequest, Submission, element_of
from leasehold.http.settings import ApiSettings
from leasehold.http.submitter import Submitter

PAYLOAD = '{"to": "user@example.com", "subject": "Welcome"}'


class Pausing(Submitter):
    """Gathers for a while before it sends."""

    seconds = 0.0

    async def _drive(self) -> None:
        if self.seconds:
            await asyncio.sleep(self.seconds)
        await super()._drive()


async def measure(dsn: str, options: argparse.Namespace) -> None:
    database = Database(dsn, schema="leasehold", wait=10, bounded=True)
    submitter = Pausing(database, ApiSettings(lanes=options.lanes))
    submitter.seconds = options.pause / 1000
    request = JobRequest.model_validate({"jobType": "SEND_EMAIL"})

    async def client(name: str, jobs: int) -> None:
        for n in range(jobs):
            key = f"{name} {n}"
            await submitter.submit(Submission("SEND_EMAIL", "default", key, element_of(request, key, PAYLOAD)))

    await client("warm", 20)
    print("clients   µs/job   CPU µs/job   jobs/statement")
    for clients in (1, 16, 64, 200):
        jobs = max(1, options.jobs // clients)
        statements, wall, cpu = submitter.statements, time.perf_counter(), time.process_time()
        await asyncio.gather(*(client(f"{clients} {n}", jobs) for n in range(clients)))
        total = clients * jobs / 1e6
        wall, cpu = (time.perf_counter() - wall) / total, (time.process_time() - cpu) / total
        print(f"{clients:7}{wall:9.0f}{cpu:13.0f}{clients * jobs / (submitter.statements - statements):17.1f}")
    database.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0, metavar="MS")
    parser.add_argument("--jobs", type=int, default=1600)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        EmbeddedServer(Path(folder) / "server") as server,
    ):
        server.ensure_database("bench")
        migrate(server.dsn("bench"))
        uvloop.run(measure(server.dsn("bench"), options))


if __name__ == "__main__":
    main()
