"""What is done to workers, and by their tasks."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from faults.fleet import Member
from faults.places import WORK
from faults.run import UNFINISHED, Run, Skip
from faults.tasks import SCHEDULES
from faults.waiting import until

FAKETIME = "/usr/lib/{}-linux-gnu/faketime/libfaketime.so.1"


def kills(run: Run) -> None:
    """Workers are killed again and again, and replaced at once."""
    jobs, deaths = run.size(600, 100_000), run.size(4, 200)
    server = run.serve()
    run.expect(leases={"nap": run.lease}, effects=True, ends_within=run.lease + (5 if run.full else 60))
    crew = run.workers(run.size(2, 4), server.dsn, slots=16)
    nap = ("--batch", "50", "--kind", "nap", "--payload", '{"seconds": 0.05}')
    clients = run.clients(2, server.dsn, "--count", str(jobs // 2), *nap)
    thresholds = sorted(run.chance.randrange(jobs // 50, jobs * 97 // 100) for _ in range(deaths))
    steps = run.plan([
        {"what": "kill", "who": run.chance.randrange(len(crew)), "after": done, "pause": run.chance.uniform(0, 0.1)}
        for done in thresholds
    ])  # fmt: skip
    for step in steps:
        run.until_done(step["after"], within=300)
        victim = crew[step["who"]]
        while not victim.worked(run.history):  # it must have something to lose
            if not any(client.alive for client in clients) and not run.ask(UNFINISHED):
                # The others were so quick that there is nothing left.
                clients += run.clients(1, server.dsn, "--count", "200", *nap, name=f"more-{len(clients)}")
            time.sleep(0.02)
        time.sleep(step["pause"])
        victim.kill()
        run.log.note("kill", who=victim.name)
        victim.start()
    run.finish_clients(clients, stop=False)
    run.settle(within=120)
    run.facts["kills"] = deaths


def pauses(run: Run) -> None:
    """Workers, their schedulers among them, and API servers stand still for longer than a lease, and go on."""
    server = run.serve()
    run.expect(leases={"nap": run.lease}, schedules={kind: kind for kind in SCHEDULES})
    crew = run.workers(run.size(2, 3), server.dsn, FAULTS_EVERY="1")
    api = [run.fleet.server(f"api-{n}", server.dsn).start() for n in range(run.size(1, 2))]
    urls = [option for member in api for option in ("--url", member.ready().url)]
    nap = ("--kind", "nap", "--payload", '{"seconds": 0.2}', "--rate", "40")
    clients = run.clients(1, server.dsn, *nap) + run.clients(1, server.dsn, *urls, *nap, name="web")
    members = [*crew, *api]
    steps = run.plan([
        {
            "what": "stop",
            "who": sorted({run.chance.randrange(len(crew)), run.chance.randrange(len(members))}),
            "seconds": run.lease * run.chance.uniform(1.1, 1.6),
        }
        for _ in range(run.size(2, 30))
    ])  # fmt: skip
    run.until_done(5)
    for step in steps:
        stopped = [members[n] for n in step["who"]]
        for member in stopped:
            if member in crew:
                _until_worked(run, member)
            member.send(signal.SIGSTOP)
            run.log.note("stop", who=member.name)
        time.sleep(step["seconds"])
        for member in stopped:
            member.send(signal.SIGCONT)
            run.log.note("cont", who=member.name)
    run.finish_clients(clients)
    _disable_schedules(run)
    run.settle(within=120)
    run.facts["stops"] = sum(len(step["who"]) for step in steps)
    run.check(all(member.alive for member in members), "a process that was stopped has ended")


def failpoints(run: Run) -> None:
    """A worker dies at each named point; others do what it left."""
    server = run.serve()
    run.expect(leases={"nap": run.lease, "flaky": run.lease}, schedules={kind: kind for kind in SCHEDULES})
    points = WORK * 3 if run.full else run.chance.sample(WORK, 5)
    run.plan([{"what": "failpoint", "point": point} for point in points])
    clients = [
        *run.clients(1, server.dsn, "--kind", "nap", "--payload", '{"seconds": 1.2}', "--rate", "10", name="naps"),
        *run.clients(1, server.dsn, "--kind", "flaky", "--payload", '{"failures": 1}', "--rate", "10", name="flaky"),
    ]
    doomed = {}
    for point in points:
        member = run.fleet.worker(f"doomed-{len(doomed)}", server.dsn, slots=4, FAULTS_EVERY="1")
        doomed[member] = point
        member.start(LEASEHOLD_FAILPOINT=point)
    for member, point in doomed.items():
        if point.endswith("-release"):
            _until_worked(run, member)
            member.send(signal.SIGTERM)
            time.sleep(0.1)  # two signals at once are one
            member.send(signal.SIGTERM)
    for member, point in doomed.items():
        code = member.wait(90)
        run.log.note("kill", point=point)
        run.check(code == -signal.SIGKILL, f"the worker that was to die at {point} ended with {code}")
    sane = run.workers(2, server.dsn, FAULTS_EVERY="1")
    run.finish_clients(clients)
    _disable_schedules(run)
    run.settle(within=180)
    run.check(all(member.alive for member in sane), "a worker that was not to die did")
    run.facts["deaths"] = len(doomed)


def clock(run: Run) -> None:
    """Workers and clients on hosts whose clocks are an hour fast or slow."""
    library = FAKETIME.format(os.uname().machine)
    if not Path(library).exists():
        raise Skip("libfaketime is not installed (Debian's libfaketime)")
    server = run.serve()
    run.expect(leases={"nap": run.lease})

    def wrong(offset: str) -> dict[str, str]:
        # The monotonic clock of a host with a wrong time of day is right.
        return {
            "LD_PRELOAD": library,
            "FAKETIME": offset,
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_NO_CACHE": "1",
        }

    crew = [run.fleet.worker(f"worker{offset}", server.dsn, **wrong(offset)).start() for offset in ("+1h", "-1h", "+0")]
    nap = ("--kind", "nap", "--payload", '{"seconds": 0.3}', "--rate", "40")
    clients = [run.fleet.client(f"client{o}", server.dsn, *nap).start(**wrong(o)) for o in ("+1h", "-1h")]
    steps = run.plan([
        {"what": run.chance.choice(["kill", "stop"]), "who": run.chance.randrange(3), "pause": run.chance.uniform(0, 1)}
        for _ in range(run.size(1, 20))
    ])  # fmt: skip
    for step in steps:
        victim = crew[step["who"]]
        _until_worked(run, victim)
        time.sleep(step["pause"])
        run.log.note(step["what"], who=victim.name)
        if step["what"] == "kill":
            victim.kill()
            victim.start()
        else:
            victim.send(signal.SIGSTOP)
            time.sleep(run.lease * 1.2)
            victim.send(signal.SIGCONT)
    run.finish_clients(clients)
    run.settle(within=120)
    early = run.ask(
        "select count(*) from leasehold.jobs where abs(extract(epoch from created_at - clock_timestamp())) > 1800"
    )
    run.check(early == 0, f"{early} jobs have the time of a client's wrong clock")
    run.facts["faults"] = len(steps)


def tasks(run: Run) -> None:
    """A task that blocks the event loop for two leases keeps its job; one that kills its process ends dead."""
    blockers, deadly = run.size(2, 10), run.size(2, 10)
    server = run.serve()
    run.expect(leases={"block": run.lease, "suicide": run.lease})
    run.plan([{"what": "block", "count": blockers}, {"what": "suicide", "count": deadly}])
    crew = run.workers(2, server.dsn, "--queues", "default", slots=2)
    prey = [run.fleet.worker(f"prey-{n}", server.dsn, "--queues", "deadly", slots=1).start() for n in range(2)]
    for n in range(blockers):
        run.enqueue("block", {"seconds": 2 * run.lease}, key=f"block-{n}", attempts=5)
    for n in range(deadly):
        run.enqueue("suicide", {}, key=f"suicide-{n}", queue="deadly", attempts=3)
    deadline = time.monotonic() + 60 * deadly
    deaths = 0
    while run.ask("select exists (select from leasehold.jobs where kind = 'suicide' and state <> 'dead')"):
        for member in prey:
            if not member.alive:
                deaths += 1
                run.log.note("restart", who=member.name)
                member.start()
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    run.settle(within=120)
    wrong = run.ask(
        "select count(*) from leasehold.jobs where kind = 'suicide'"
        " and (state, retry_count, attempt, reason) is distinct from ('dead', 3, 3, 'lease_expired')"
    )
    run.check(wrong == 0, f"{wrong} jobs that kill their process did not end dead after exactly 3 failures")
    again = run.ask("select count(*) from leasehold.jobs where kind = 'block' and (state <> 'success' or attempt > 1)")
    run.check(again == 0, f"{again} jobs that block the event loop lost their lease")
    run.check(all(member.alive for member in crew), "a worker died of a task that only blocks")
    run.facts["deaths"] = deaths


def schedules(run: Run) -> None:
    """Schedulers are killed at random and between claim and fire; each due time has its one job."""
    server = run.serve()
    run.expect(leases=dict.fromkeys(SCHEDULES, run.lease), schedules={kind: kind for kind in SCHEDULES})
    crew = run.workers(run.size(2, 3), server.dsn, FAULTS_EVERY="1")
    # The checker refuses a history in which nothing was acknowledged.
    clients = run.clients(1, server.dsn, "--rate", "5")
    points = ["", "after-schedule-claim", "after-schedule-fire"]
    steps = run.plan([
        {"what": "kill", "who": run.chance.randrange(len(crew)), "pause": run.chance.uniform(0.1, 0.9),
         "then": run.chance.choice(points)}
        for _ in range(run.size(4, 100))
    ])  # fmt: skip
    run.until_done(3)
    for step in steps:
        time.sleep(step["pause"])
        victim = crew[step["who"]]
        run.log.note("kill", who=victim.name, then=step["then"])
        if victim.alive:
            victim.kill()
        victim.start(**({"LEASEHOLD_FAILPOINT": step["then"]} if step["then"] else {}))
    crew += [run.fleet.worker("sane", server.dsn, FAULTS_EVERY="1").start()]
    run.finish_clients(clients)
    caught_up = "select count(*) = 3 from leasehold.schedules where next_run_at > clock_timestamp()"
    until(lambda: run.ask(caught_up), "every due time was fired", within=120)
    _disable_schedules(run)
    run.settle(within=120)
    _check_fires(run)
    run.facts["kills"] = len(steps)


def _check_fires(run: Run) -> None:
    """None twice is the checker's; that none is missing is ours: due times are a second apart, from first to last."""
    for kind in SCHEDULES:
        span = (
            "select round(extract(epoch from max(at) - min(at)))::int + 1 - count(distinct at)::int, count(*) from"
            " (select (payload ->> 'due')::timestamptz as at from leasehold.jobs where kind = %s) fires"
        )
        with run.where() as connection:
            row: Any = connection.execute(span, [kind]).fetchone()
        run.check(row[0] == 0 and row[1] > 1, f"schedule {kind}: {row[0]} due times without a job, {row[1]} jobs")
        run.facts[kind] = row[1]


def _disable_schedules(run: Run) -> None:
    run.ask("select count(leasehold.schedule_disable(key)) from leasehold.schedules")


def _until_worked(run: Run, member: Member) -> None:
    """A process that is about to be hit must have something to lose."""
    until(lambda: member.worked(run.history), f"{member.name} works", within=120)
