"""What the tests of limits share: a history of leases, written by the database itself, and how to read it."""

from datetime import datetime, timedelta

# One row for each time that a job stopped running: its lease lived from the claim until the end or the expiry,
# whichever came first. The end is read after the row was written, so a claim that counted it as over began later.
HISTORY = """
create table history (id uuid, queue text, kind text, exclusive_key text, begins timestamptz, ends timestamptz);
create function log_lease() returns trigger language plpgsql as $$
begin
  insert into leasehold.history values (old.id, old.queue, old.kind, old.exclusive_key, old.claimed_at,
    greatest(old.claimed_at, least(clock_timestamp(), old.lease_expires_at)));
  return null;
end $$;
create trigger log_lease after update of state on jobs for each row
when (old.state = 'running' and new.state <> 'running') execute function log_lease();
"""

OF_SCOPE = {
    "global": "true",
    "queue": "queue = %(name)s",
    "kind": "kind = %(name)s",
    "key": "starts_with(exclusive_key, %(name)s)",
}

OVERLAP = """
select coalesce(max(live), 0) from (
  select sum(change) over (order by at, change) as live from (
    select begins as at, 1 as change from history where {} union all
    select ends, -1 from history where {}) changes) t
"""


def most_live(session, scope: str, name: str) -> int:
    """The largest number of leases under a limit that were alive at one moment."""
    law = OF_SCOPE[scope]
    found = session.execute(OVERLAP.format(law, law), {"name": name}).fetchone()
    return int(found[0])


def utilisation(session, max_running: int) -> float:
    """The share of the places in use, from when they first were all taken until nothing was left to claim."""
    intervals: list[tuple[datetime, datetime]] = session.execute("select begins, ends from history").fetchall()
    since = sorted(begins for begins, _ in intervals)[max_running - 1]
    until = max(begins for begins, _ in intervals)
    used = sum((max(timedelta(), min(end, until) - max(begin, since)) for begin, end in intervals), timedelta())
    return used / ((until - since) * max_running)


def set_limit(session, scope: str, name: str, max_running: int) -> None:
    session.rows("set_limit", scope=scope, name=name, max_running=max_running)


def claimed(session, count=100, worker="w", **narrow) -> list:
    return session.column("claim", worker=worker, count=count, **narrow)


def complete(session, *ids, worker="w", attempt=1) -> None:
    done = session.column("complete", worker=worker, ids=list(ids), attempts=[attempt] * len(ids))
    assert set(done) == set(ids)


def parked(session) -> list:
    return session.values("select id from jobs where parked order by id")
