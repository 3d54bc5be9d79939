"""What limits cost that never hold anything back."""

from dataclasses import replace

from bench.contestants import LEASEHOLD
from bench.lines import Line, at_least, not_run, ratios, seen
from bench.suite import Run, attempt, case

KEYED = """update jobs set exclusive_key = 'tenant' || (row_number % 50) || '/' || id
    from (select id as numbered, row_number() over () from jobs) n where numbered = id"""
# Wide enough for every slot and all that is prefetched: what is measured is the counting.
LIMITS = {
    "a global limit": ["select set_limit('global', '', 5000)"],
    "a limit on the queue": ["select set_limit('queue', 'default', 5000)"],
    "50 limits on keys": [f"select set_limit('key', 'tenant{n}/', 5000)" for n in range(50)],
}


@case("limits")
def limits(run: Run) -> list[Line]:
    """The rate of a drain under limits as a share of that without."""
    jobs = run.size(40_000, 3_000)
    rates: dict[str, list[float]] = {name: [] for name in ("none", *LIMITS, "exclusive keys, no limit")}
    for _, name in run.in_turn(list(rates)):
        rate = attempt(run, lambda name=name: _once(run, name, jobs), name)
        if rate is not None:
            rates[name].append(rate)
    keyed = rates["exclusive keys, no limit"]
    return [
        _line("global, without", rates["a global limit"], rates["none"]),
        _line("queue, without", rates["a limit on the queue"], rates["none"]),
        _line("per key, the same keys without", rates["50 limits on keys"], keyed),
        seen(ratios(keyed, rates["none"]), "%", what="an exclusive key on every job", against="without"),
    ]


def _once(run: Run, name: str, jobs: int) -> float:
    dsn = run.filled(LEASEHOLD, jobs)
    with run.server.connect("bench") as connection:
        if "keys" in name:
            connection.execute(KEYED)
        for statement in LIMITS.get(name, []):
            connection.execute(statement.encode())
        connection.execute("vacuum analyze jobs")
    return run.drain(replace(LEASEHOLD, name=f"leasehold, {name}"), jobs, dsn=dsn).rate


def _line(against: str, limited: list[float], free: list[float]) -> Line:
    if not (limited and free):
        return not_run("it failed, see above", what="limits on", against=against, target="≥ 85 %")
    return at_least(0.85, ratios(limited, free), "%", what="limits on", against=against)
