"""What the tests of exclusive keys share."""

# Writes down each start and end of running; per key they must alternate.
LOG = """
create table running_log (place bigserial, exclusive_key text, id uuid, starts boolean);
create function log_running() returns trigger language plpgsql as $$
begin
  insert into leasehold.running_log (exclusive_key, id, starts)
  values (new.exclusive_key, new.id, new.state = 'running');
  return null;
end $$;
create trigger log_running after update of state on jobs for each row
when ((old.state = 'running') <> (new.state = 'running') and new.exclusive_key is not null)
execute function log_running();
"""


def overlaps(session) -> int:
    """How often a job of a key started while another one of it ran."""
    running: dict[str, set] = {}
    found = 0
    for key, job_id, starts in session.execute(
        "select exclusive_key, id, starts from running_log order by place"
    ).fetchall():
        ours = running.setdefault(key, set())
        if starts:
            found += bool(ours)
            ours.add(job_id)
        else:
            ours.discard(job_id)
    return found


def claimed(session, worker="w", count=100):
    return session.column("claim", worker=worker, count=count)


def complete(session, job_id, worker="w", attempt=1):
    assert session.column("complete", worker=worker, ids=[job_id], attempts=[attempt]) == [job_id]


def parked(session):
    return session.values("select id from jobs where parked order by id")


def current(session, key="x"):
    return session.values("select id from jobs where exclusive_key = %s and is_current", key)


ENDINGS = {
    "complete": lambda s, job: s.column("complete", worker="w", ids=[job], attempts=[1]),
    "fail": lambda s, job: s.one("fail", worker="w", id=job, attempt=1, retry_after=60),
    "fail fatally": lambda s, job: s.one("fail", worker="w", id=job, attempt=1, fatal=True),
    "snooze": lambda s, job: s.one("fail", worker="w", id=job, attempt=1, outcome="snoozed", retry_after=60),
    "cancel": lambda s, job: (s.one("cancel", id=job), s.one("promote")),  # upkeep, which the cancel wakes
    "release": lambda s, job: s.column("release", worker="w", ids=[job], attempts=[1]),
}
