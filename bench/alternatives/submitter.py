"""What a submission costs between HTTP and the database, by how many clients submit at the same time. No HTTP here."""

import asyncio
import time
from itertools import count

import uvloop

from bench.lines import Line, seen
from bench.suite import Run, case
from leasehold.db.database import Database
from leasehold.db.store import Seen
from leasehold.http.schemas import JobRequest
from leasehold.http.settings import ApiSettings
from leasehold.http.submissions import submission_of
from leasehold.http.submitter import Submission, Submitter

PAYLOAD = '{"to": "user@example.com", "subject": "Welcome"}'
_names = count()


class Pausing(Submitter):
    """Gathers for a while before it sends."""

    seconds = 0.0

    async def submit(self, submission: Submission) -> Seen:
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return await super().submit(submission)


async def _once(dsn: str, senders: int, pause: float, clients: int, jobs: int) -> tuple[float, float]:
    """Microseconds per job, and jobs per statement. A client submits its next job when the last is answered."""
    database = Database(dsn, schema="leasehold", wait=10, bounded=True)
    submitter = Pausing(database, ApiSettings(senders=senders))
    submitter.seconds = pause
    request = JobRequest.model_validate({"jobType": "SEND_EMAIL"})

    async def client(jobs: int) -> None:
        for _ in range(jobs):
            key = f"key {next(_names)}"
            await submitter.submit(submission_of(request, key, {"payload": PAYLOAD}))

    await client(20)
    each = max(1, jobs // clients)
    statements, began = submitter.statements, time.perf_counter()
    await asyncio.gather(*(client(each) for _ in range(clients)))
    took = time.perf_counter() - began
    database.close()
    return took / (clients * each) * 1e6, clients * each / (submitter.statements - statements)


@case("submitter", alternative=True)
def submitter(run: Run) -> list[Line]:
    """Submissions gathered into statements: two senders as shipped, one, and two that wait 2 ms before they send."""
    ways = {"two senders": (2, 0.0), "one sender": (1, 0.0), "two senders, gathering for 2 ms": (2, 0.002)}
    jobs = run.size(1_600, 200)
    dsn = run.server.leasehold("bench")
    lines = []
    for clients in (1, 16, 64, 200):
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _, name in run.in_turn(list(ways)):
            senders, pause = ways[name]
            cost, gathered = uvloop.run(_once(dsn, senders, pause, clients, jobs))
            found[name].append(cost)
            run.note(f"{name}, {clients} clients", us=cost, jobs_per_statement=gathered)
        lines += [
            seen(values, "µs", what=f"submission, {clients} clients", against=name) for name, values in found.items()
        ]
    return lines
