"""A worker that has run very many jobs looks like one that has run few."""

from pathlib import Path

import pytest

from faults.waiting import auntil
from tests.survival.conftest import Sql, one, ready, rounds, worker

DONE = "select count(*) from jobs where state = 'success'"


def footprint(pid: int) -> dict[str, int]:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "resident MB": int(status["VmRSS"].split()[0]) // 1024,
        "threads": int(status["Threads"]),
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
    }


@pytest.mark.timeout(900)
async def test_nothing_grows_with_the_number_of_jobs(dsn: str, sql: Sql) -> None:
    count = rounds(12_000, 200_000)
    with worker(dsn, "--slots", "50", "--prefetch", "200") as process:
        await ready(sql, 1)
        first = count // 4
        for batch, total in ((first, first), (count - first, count)):
            for kind in ("nap", "block_thread"):
                sql.execute("select enqueue(%s, '{\"seconds\": 0}') from generate_series(1, %s)", [kind, batch // 2])
            await auntil(lambda total=total: one(sql, DONE) == total, within=60 + total / 200)
            if total == first:
                before = footprint(process.pid)
        after = footprint(process.pid)
        connections = one(sql, "select count(*) from pg_stat_activity where datname = current_database()")
    assert after["threads"] <= before["threads"]
    assert after["descriptors"] <= before["descriptors"] + 2
    assert after["resident MB"] <= before["resident MB"] + 8, (before, after)
    assert connections <= 1 + 6  # ours, and the claimer's, finisher's, keeper's, upkeep's, listener's, sender's
    assert one(sql, "select count(*) from attempts") == 0
