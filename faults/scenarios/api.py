"""What is done to API servers."""

import time

from faults.places import SUBMISSION
from faults.run import Run
from faults.waiting import until


def api(run: Run) -> None:
    """API servers are killed at each step of a submission, and at random, while clients submit with keys."""
    server = run.serve()
    run.expect(leases={"quick": run.lease})
    run.workers(1, server.dsn)
    steps = run.plan([
        {point: run.chance.randrange(2, 10) for point in SUBMISSION} | {"pause": run.chance.uniform(0.1, 1)}
        for _ in range(run.size(1, 20))
    ])  # fmt: skip
    sane = run.fleet.server("sane", server.dsn).start()
    # A test of the contract has a server die at each point; there is more to it here when several do at once.
    points = SUBMISSION if run.full else run.chance.sample(SUBMISSION, 2)
    doomed = {point: run.fleet.server(point, server.dsn) for point in points}
    unlucky = run.fleet.server("unlucky", server.dsn)
    urls = [option for member in (*doomed.values(), unlucky, sane) for option in ("--url", member.url)]
    clients = run.clients(run.size(2, 8), server.dsn, *urls, "--rate", str(run.size(40, 100)))
    for step in steps:
        for point, member in doomed.items():
            member.start(LEASEHOLD_FAILPOINT=f"{point}:{step[point]}")
        unlucky.start().ready()
        time.sleep(step["pause"])
        unlucky.kill()
        run.log.note("kill", who=unlucky.name)
        for point, member in doomed.items():
            until(lambda member=member: not member.alive, f"a server dies at {point}", within=120)
            run.log.note("kill", who=member.name)
    run.finish_clients(clients)
    # What was recorded but never accepted is the client's to repeat, and each client did until it was answered.
    run.settle(within=120)
    run.facts["kills"] = len(steps) * (len(doomed) + 1)
    run.check(sane.alive, "the server that was not to die did")
