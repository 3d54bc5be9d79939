"""What is done to the network between programs and PostgreSQL."""

import time

from faults.proxy import Cutter, Proxy
from faults.run import Run
from faults.waiting import until

CALLS = ("enqueue", "claim", "renew", "complete")


def cuts(run: Run) -> None:
    """Connections are cut around the questions and answers of enqueue, claim, renew and complete."""
    each = run.size(8, 2000)
    server = run.serve()
    run.expect(leases={"busy": run.lease})
    cutter = Cutter(run.chance, dict.fromkeys(CALLS, each), share=0.3)
    proxy = Proxy(server.dsn, cutter, hole=1.3 * run.lease)
    run.stack.callback(proxy.close)
    run.plan([{"what": "cut", "call": call, "count": each, "share": 0.3} for call in CALLS])
    workers = run.workers(run.size(3, 8), proxy.dsn, slots=4)
    busy = ("--kind", "busy", "--payload", '{"beats": 4, "pause": 0.03}', "--rate", str(run.size(12, 40)))
    clients = run.clients(run.size(2, 4), proxy.dsn, *busy)
    until(lambda: cutter.left == 0, "every cut was made", within=run.size(60, 1800), pause=0.1)
    proxy.knife = None
    run.log.note("heal")
    if run.full:
        _slow_and_cut(run, proxy)
    run.finish_clients(clients)
    run.settle(within=120 if not run.full else 600)
    run.facts |= {f"{call} cut": cutter.of(call) for call in CALLS}
    run.check(all(worker.alive for worker in workers), "a worker did not survive its network")
    _check_leaks(run)


def _slow_and_cut(run: Run, proxy: Proxy) -> None:
    """A slow line, and now and then all connections at once."""
    proxy.pace = 20_000
    for _ in range(10):
        time.sleep(run.chance.uniform(0.5, 2))
        run.log.note("cut", connections=proxy.cut_all())
    proxy.pace = None


def _check_leaks(run: Run) -> None:
    """No claim outlives its lease: what is not renewed is claimed again, or swept, soon after."""
    leaked = run.ask(
        "select count(*) from (select to_state, lease_expires_at,"
        " lead(at) over (partition by job_id order by seq) as next from leasehold.events) e"
        " where to_state = 'running' and next > lease_expires_at + interval '30 s'"
    )
    run.check(leaked == 0, f"{leaked} leases were found expired only after half a minute")
