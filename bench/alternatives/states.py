"""The state's type, measured on a narrow table of its own."""

import time

from bench.alternatives.pair import BATCH, Cost, lines
from bench.lines import Line
from bench.suite import Run

FILL = """insert into {name} (kind, payload, state)
    select 'noop', jsonb_build_object('i', g, 'to', 'someone@example.com'), {queued}
    from generate_series(1, {jobs}) g"""


def compare(run: Run, types: dict[str, tuple[str, ...]], texts: tuple[str, ...], jobs: int) -> list[Line]:
    """All tables in one database, one batch of each in turn."""
    run.server.leasehold("bench")
    found: dict[str, list[Cost]] = {name: [] for name in types}
    with run.server.connect("bench") as connection:
        for _ in run.rounds():
            statements = {}
            for name, (kind, queued, running, success) in types.items():
                words = {"name": f"jobs_{name}", "type": kind, "queued": queued, "running": running, "success": success}
                made, runnable, lease, claim, finish = (text.format(**words) for text in texts)
                connection.execute(f"drop table if exists {words['name']}".encode())
                for statement in (
                    made,
                    runnable,
                    lease,
                    FILL.format(jobs=jobs, **words),
                    f"vacuum analyze {words['name']}",
                ):
                    connection.execute(statement.encode())
                statements[name] = (claim.encode(), finish.encode())
            spent, wal = dict.fromkeys(types, 0.0), dict.fromkeys(types, 0)
            for turn in range(jobs // BATCH):
                order = list(statements.items())
                for name, (claim_it, finish_it) in order[turn % len(order) :] + order[: turn % len(order)]:
                    before, began = run.server.lsn(), time.perf_counter()
                    taken = connection.execute(claim_it, {"n": BATCH}, prepare=True).fetchall()
                    connection.execute(finish_it, {"ids": [row[0] for row in taken]}, prepare=True)
                    spent[name] += time.perf_counter() - began
                    wal[name] += run.server.lsn() - before
                    assert len(taken) == BATCH
            for name in types:
                found[name].append(Cost(us=spent[name] / jobs * 1e6, wal=wal[name] / jobs))
                run.note(name, us=found[name][-1].us, wal=found[name][-1].wal)
    return lines("state as a", found, "enum")
