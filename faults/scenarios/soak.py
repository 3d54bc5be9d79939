"""A long time of everything at once: what grows, and does it have to?"""

import os
import signal
import time
from dataclasses import dataclass
from statistics import mean
from typing import Any

import psutil

from faults.fleet import Member
from faults.run import Run

# Sizes without events: the history of a fault run grows with every transition, as it should.
SIZES = """
select greatest(count(*), 1),
  (select coalesce(sum(pg_total_relation_size(c.oid)), 0) from pg_class c join pg_namespace n on n.oid = relnamespace
    where nspname = 'leasehold' and relkind = 'r' and relname not in ('events', 'jobs')),
  pg_table_size('leasehold.jobs'), pg_indexes_size('leasehold.jobs')
from leasehold.jobs
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """How large everything is at one moment."""

    memory: float
    """Megabytes of the processes that live through the whole run."""
    files: float
    """Their open files."""
    row: float
    """Bytes of the table of jobs, for each job."""
    index: float
    """Bytes of its indexes, for each job."""
    rest: float
    """Bytes of all other tables, for each job."""


def soak(run: Run) -> None:
    """Mixed load and random faults for half an hour, or for as many minutes as FAULTS_MINUTES says."""
    seconds = 60 * float(os.environ.get("FAULTS_MINUTES", "30")) if run.full else 6.0
    server = run.serve()
    run.expect(leases=dict.fromkeys(("quick", "nap", "flaky"), run.lease))
    steady = [run.fleet.worker("steady", server.dsn).start(), run.fleet.server("api-steady", server.dsn).start()]
    prey = run.workers(run.size(1, 2), server.dsn)
    url = steady[1].ready().url
    clients = [
        *run.clients(1, server.dsn, "--rate", "20", "--batch", "5", name="quick"),
        *run.clients(1, server.dsn, "--rate", "20", "--url", url, name="web"),
        *run.clients(1, server.dsn, "--rate", "10", "--kind", "nap", "--payload", '{"seconds": 0.3}', name="nap"),
        *run.clients(1, server.dsn, "--rate", "5", "--kind", "flaky", "--payload", '{"failures": 1}', name="flaky"),
    ]
    steps = run.plan([
        {
            "what": run.chance.choice(["kill", "stop", "disconnect"]),
            "who": run.chance.randrange(len(prey)),
            "pause": run.chance.uniform(0.5, 1.5 if not run.full else 4),
        }
        for _ in range(max(3, int(seconds / 3)))
    ])  # fmt: skip
    run.until_done(20)
    samples: list[Sample] = []
    faults = 0
    ends = time.monotonic() + seconds
    for step in steps:
        if time.monotonic() > ends:
            break
        time.sleep(step["pause"])
        _hurt(run, prey[step["who"]], step["what"])
        faults += 1
        samples.append(_sample(run, steady))
    run.finish_clients(clients)
    run.settle(within=180)
    run.facts["faults"] = faults
    run.check(all(member.alive for member in steady), "a process that was not to die did")
    _judge_growth(run, samples)


def _hurt(run: Run, victim: Member, what: str) -> None:
    run.log.note(what, who=victim.name)
    if what == "kill":
        victim.kill()
        victim.start()
    elif what == "stop":
        victim.send(signal.SIGSTOP)
        time.sleep(run.lease * 1.2)
        victim.send(signal.SIGCONT)
    else:
        run.ask(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name like 'leasehold%%'"
            " and pid %% 3 = %s",
            victim.pid % 3,  # a third of the connections, and not always the same
        )


def _sample(run: Run, steady: list[Member]) -> Sample:
    processes = [psutil.Process(member.pid) for member in steady]
    with run.where() as connection:
        row: Any = connection.execute(SIZES).fetchone()
    jobs = float(row[0])
    return Sample(
        memory=sum(process.memory_info().rss for process in processes) / 1e6,
        files=float(sum(process.num_fds() for process in processes)),
        row=float(row[2]) / jobs,
        index=float(row[3]) / jobs,
        rest=float(row[1]) / jobs,
    )


def _judge_growth(run: Run, samples: list[Sample]) -> None:
    """Compare the last third with the one before: by then everything has its size."""
    third = max(1, len(samples) // 3)
    middle, last = samples[third : 2 * third] or samples, samples[-third:]
    allowed = {"memory": 1.1, "files": 1.2, "row": 1.2, "index": 1.2, "rest": 1.2}
    for name, factor in allowed.items():
        before, after = (mean(getattr(sample, name) for sample in part) for part in (middle, last))
        growth = after / before if before else 1.0
        run.facts[f"{name} growth"] = f"{growth:.2f} (to {after:.0f})"
        run.check(not run.full or growth <= factor, f"{name} grew by a factor of {growth:.2f}, {factor} is allowed")
