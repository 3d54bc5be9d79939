"""Hours in short: jobs come and go at a steady rate while autovacuum does its work."""

import threading
import time

from bench.contestants import LEASEHOLD
from bench.fleet import BenchError, at_work, client
from bench.lines import Line, at_least, at_most, seen
from bench.suite import Run, case

SIZES = """select /*suite*/ pg_relation_size('jobs'), pg_indexes_size('jobs'), count(*),
    (select n_dead_tup from pg_stat_user_tables where relname = 'jobs' and schemaname = 'leasehold') from jobs"""
INDEXES = """select /*suite*/ c.relname, pg_relation_size(c.oid) from pg_index i join pg_class c on c.oid = i.indexrelid
    where i.indrelid = 'jobs'::regclass order by 2 desc"""


@case("sustained", long=True)
def sustained(run: Run) -> list[Line]:
    """A steady load for a minute or ten: whether the rate is kept, and how many bytes a job takes as time goes by."""
    seconds = run.seconds(run.options.sustained, 5)
    rate = run.drain(LEASEHOLD, run.size(40_000, 3_000)).rate / 4
    dsn = run.database(LEASEHOLD)
    sizes: list[tuple[float, float]] = []
    sent: dict[str, int] = {}
    with at_work(LEASEHOLD, dsn) as fleet, run.server.connect("bench") as look:
        fleet.go()
        feeding = threading.Thread(
            target=lambda: sent.update(client(LEASEHOLD, dsn, "steady", int(rate), seconds, timeout=seconds + 60))
        )
        feeding.start()
        fleet.wait(1, 60)  # the feeder has to start first
        began, last = time.monotonic(), 0
        kept: list[float] = []
        for number in range(1, 7):
            time.sleep(max(0.0, began + seconds * number / 6 - time.monotonic()))
            table, indexes, rows, dead = look.execute(SIZES).fetchone() or (0, 0, 0, 0)
            done, last = fleet.count() - last, fleet.count()
            kept.append(done / (seconds / 6) / rate)
            sizes.append((table / max(1, rows), indexes / max(1, rows)))
            run.note(
                "leasehold", rows=rows, table_bytes=sizes[-1][0], index_bytes=sizes[-1][1], dead=dead, kept=kept[-1]
            )
        feeding.join()
        if "n" not in sent:
            raise BenchError("the producer failed, see above")
        widest = dict(look.execute(INDEXES).fetchall())
    run.note("indexes", **widest)
    what = f"sustained, {seconds:.0f} s at a quarter of the drain rate"
    return [
        at_least(0.9, kept[1:], "%", what=what, against="the rate that was asked for"),
        seen([one[0] for one in sizes], "B", what=what, against="table per job"),
        seen([one[1] for one in sizes], "B", what=what, against="indexes per job"),
        at_most(
            1.2, [sum(sizes[-1]) / sum(sizes[1])], "x", what=what, against="bytes per job after a third of the time"
        ),
    ]
