"""What the pictures cost: each figure by its own index, and no more rows than its cap, whatever the history."""

from tests.sql.test_plans import DEEP, listening, table  # noqa: F401 (a fixture)

LOOKS = {
    "select * from recent_traffic(clock(), 100, null)": 300,
    "select arrivals(clock() - interval '1 minute', clock(), 100)": 100,
    "select sample_flow(clock(), 100)": 600,
    "select * from rates()": 2 * DEEP,
    "select * from statistics(clock() - interval '1 hour')": 0,
    "select * from flow(clock() - interval '1 hour')": 0,
    "select canary_step()": 0,
}
WAYS = {"pkey", "runnable", "lease", "due", "finished", "exclusive_waiting", "parked", "parked_under"}


def test_no_query_reads_the_whole_table_or_more_than_its_cap(table: str) -> None:  # noqa: F811
    with listening(table) as session:
        for look, most in LOOKS.items():
            session.execute(look)
            used = session.used()
            assert used.keys() <= {f"jobs_{name}" for name in WAYS}, look
            assert sum(used.values()) <= most, look
