"""A primary that dies, and the standby that takes its place."""

import threading
import time
from typing import Any

from faults.fleet import Member
from faults.run import Run, judge
from faults.servers import Pair
from faults.waiting import until
from leasehold import App

NAP = ("--kind", "nap", "--payload", '{"seconds": 0.05}', "--rate", "40")
CLAIMS = "select coalesce(max(seq), 0) from leasehold.events where to_state = 'running' and from_state = 'queued'"
WAITING = "select pid from pg_stat_activity where wait_event = 'SyncRep'"


def failover(run: Run) -> None:
    """The primary is killed under load and its synchronous standby promoted, again and again: nothing is lost."""
    pair, crew, clients = _begin(run, synchronous=True)
    steps = run.plan([
        {"what": "failover", "cut": run.chance.random() < 0.5, "pause": run.chance.uniform(0.3, 1)}
        for _ in range(run.size(1, 20))
    ])  # fmt: skip
    gaps = []
    for step in steps:
        run.until_done(run.done() + 10)
        _fail_over(run, pair, cut=step["cut"], pause=step["pause"])
        promoted = time.monotonic()
        before = run.ask(CLAIMS)
        pair.follow()
        until(lambda before=before: run.ask(CLAIMS) > before, "workers are back", within=60)
        gaps.append(time.monotonic() - promoted)
    run.finish_clients(clients)
    run.settle(within=120)
    run.facts |= {"failovers": len(steps), "slowest return, a new standby included, in s": round(max(gaps), 2)}
    run.check(all(member.alive for member in crew), "a worker did not survive a failover")


def failover_control(run: Run) -> None:
    """The same with an asynchronous standby has to lose acknowledged jobs: else the run above shows nothing."""
    pair, _, clients = _begin(run, synchronous=False)
    steps = run.plan([{"what": "failover"} for _ in range(run.size(1, 5))])
    for step in steps:
        _until_recorded(run, 10)
        _cut_standby(run, pair)
        time.sleep(0.5)
        _cut_standby(run, pair)  # the first time it comes back at once; then it rests
        _until_recorded(run, 20)  # of which the standby hears nothing
        _kill_primary(run, pair)
        if step is not steps[-1]:
            pair.follow()
    run.finish_clients(clients)
    run.settle(within=120)
    run.facts["failovers"] = len(steps)
    run.judges = _finds_losses


def _until_recorded(run: Run, more: int) -> None:
    """Wait until the primary has so many jobs more than now."""
    jobs = "select count(*) from leasehold.jobs"
    wanted = int(run.ask(jobs)) + more
    until(lambda: int(run.ask(jobs)) >= wanted, f"{wanted} jobs are recorded", within=60, pause=0.02)


def _finds_losses(run: Run) -> tuple[int, str]:
    """The verdict on the control: the checker must have found that acknowledged jobs are gone."""
    code, text = judge(run.history)
    losses = sum("acknowledged_jobs_end" in line for line in text.splitlines())
    if code == 1 and losses:
        return 0, f"an asynchronous standby loses acknowledged jobs, as it must: the checker says so {losses} times"
    return 1, f"the control found no loss: the checker ended with {code}\n{text}"


def unreplicated(run: Run) -> None:
    """A commit whose wait for the standby is cancelled counts only when the standby has it."""
    pair = Pair(run.folder, synchronous=True, settings=run.settings)
    run.stack.callback(pair.close)
    pair.start()
    run.where = lambda: pair.primary.connect()  # noqa: PLW0108 (the server that is the primary then)
    run.plan([{"what": "cancel"}])
    run.expect()
    pair.primary.prepare(synchronous=False)
    app = App(pair.primary.dsn)
    app.task(kind="quick")(_quick)
    run.stack.callback(app.close)
    keys = [f"job-{n}" for n in range(run.size(2, 10))]
    answered: list[str] = []
    threads = [threading.Thread(target=_enqueue, args=(run, app, key, answered)) for key in keys]
    for thread in threads:
        thread.start()
    cancelled = 0
    while cancelled < 3 * len(keys) and not answered:
        cancelled += _cancel_all(pair)
        time.sleep(0.02)
    run.check(not answered, f"{len(answered)} jobs were acknowledged that no standby had")
    pair.follow()
    for thread in threads:
        thread.join(60)
    run.check(len(answered) == len(keys), f"{len(answered)} of {len(keys)} jobs were acknowledged in the end")
    _kill_primary(run, pair)
    pair.follow()
    worker = run.fleet.worker("worker", pair.primary.dsn).start()
    run.settle(within=60)
    run.check(worker.alive, "the worker is gone")
    run.facts["waits cancelled"] = cancelled


def _enqueue(run: Run, app: App, key: str, answered: list[str]) -> None:
    """One job, by the Python API; logged as acknowledged when the call returns."""
    task: Any = app.find("quick")
    call = run.log.invoke("enqueue", key=key, kind="quick")
    job = task.using(idempotency_key=key).enqueue()
    answered.append(key)
    run.log.ok(call, job=str(job.id))


async def _quick() -> None:
    """Never called here: a worker has the real one."""


def _cancel_all(pair: Pair) -> int:
    """Cancel every wait for the standby there is; returns how many."""
    with pair.primary.connect() as connection:
        waiting = connection.execute(WAITING).fetchall()
        for (pid,) in waiting:
            connection.execute("select pg_cancel_backend(%s)", [pid])
    return len(waiting)


def _begin(run: Run, *, synchronous: bool) -> tuple[Pair, list[Member], list[Member]]:
    """A pair, workers and clients, who all know both addresses."""
    # An asynchronous standby that was cut off stays so until it is promoted: what it misses then is certain.
    settings = run.settings if synchronous else {**run.settings, "wal_retrieve_retry_interval": "60s"}
    pair = Pair(run.folder, synchronous=synchronous, settings=settings)
    run.stack.callback(pair.close)
    pair.start()
    run.where = lambda: pair.primary.connect()  # noqa: PLW0108 (the server that is the primary then)
    pair.follow()
    pair.primary.prepare()
    run.expect(leases={"nap": run.lease}, **({} if synchronous else {"lost_commits": True}))
    crew = run.workers(run.size(1, 3), pair.dsn)
    clients = run.clients(2, pair.dsn, *NAP)
    return pair, crew, clients


def _fail_over(run: Run, pair: Pair, *, cut: bool, pause: float) -> None:
    """Kill the primary and promote the standby; with `cut` its connection ends a moment before, and work goes on."""
    if cut:
        _cut_standby(run, pair)
    time.sleep(pause)
    _kill_primary(run, pair)


def _cut_standby(run: Run, pair: Pair) -> None:
    """End the standby's connection; it makes another one after wal_retrieve_retry_interval."""
    run.log.note("cut", who="standby")
    for receiver in pair.standby.find("walreceiver"):
        receiver.terminate()


def _kill_primary(run: Run, pair: Pair) -> None:
    run.log.note("kill", who="primary")
    pair.primary.kill("all")
    pair.promote()
    run.log.note("promote")
