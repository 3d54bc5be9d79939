"""claim_job: of all who want one job, exactly one gets it."""

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import psycopg
import pytest

# Look, then take: the version that comes to mind first.
NAIVE = """
create or replace function claim_job_v1(job_id uuid, worker text, claim_id uuid default null) returns boolean
language plpgsql security definer set search_path from current as $$
begin
  if not exists (select from jobs j where j.id = job_id and j.state = 'queued') then
    return false;
  end if;
  update jobs j set state = 'running', attempt = j.attempt + 1, lease_owner = worker, claimed_at = clock(),
    lease_expires_at = clock() + interval '15 seconds', is_current = j.exclusive_key is not null where j.id = job_id;
  return found;
end $$
"""


def collide(db, gate, crowd: int, rounds: int, exclusive_key=None) -> list[int]:
    """Let a crowd claim one job after the other, all at the same moment; returns how many won each."""
    keeper = db.connect()
    claimers = [db.connect() for _ in range(crowd)]
    text = f"select claim_job(%s, %s) from {gate.SQL}"
    wins = []
    with ThreadPoolExecutor(crowd) as pool:
        for _ in range(rounds):
            job_id = keeper.one("enqueue", kind="k", exclusive_key=exclusive_key)
            with gate:
                answers = [pool.submit(c.value, text, job_id, f"w{n}") for n, c in enumerate(claimers)]
                gate.wait_for(crowd)
            won = [n for n, answer in enumerate(answers) if answer.result()]
            wins.append(len(won))
            job = keeper.job(job_id)
            assert job["state"] == "running"
            if len(won) == 1:
                assert (job["lease_owner"], job["attempt"]) == (f"w{won[0]}", 1)
                assert keeper.column("complete", worker=f"w{won[0]}", ids=[job_id], attempts=[1]) == [job_id]
    return wins


@pytest.mark.parametrize("crowd", [2, 50])
def test_exactly_one_of_many_gets_the_job_a_hundred_times_over(db, gate, crowd):
    assert collide(db, gate, crowd, rounds=100) == [1] * 100


def test_exactly_one_of_many_gets_the_job_with_an_exclusive_key(db, gate):
    assert collide(db, gate, 20, rounds=30, exclusive_key="x") == [1] * 30


def test_the_collision_catches_the_naive_version(db, gate, session):
    session.execute(NAIVE)
    assert max(collide(db, gate, 20, rounds=20)) > 1


def test_a_job_that_is_not_eligible_is_skipped_silently(session):
    created = session.one("enqueue", kind="k", run_after="1 hour")
    submitted = session.one("submit", kind="k")
    done, cancelled, taken = (session.one("enqueue", kind="k") for _ in range(3))
    assert session.one("claim_job", job_id=done, worker="w") is True
    session.column("complete", worker="w", ids=[done], attempts=[1])
    session.one("cancel", id=cancelled)
    assert session.one("claim_job", job_id=taken, worker="w") is True
    before = session.everything()
    for job_id in (created, submitted, done, cancelled, taken):
        assert session.one("claim_job", job_id=job_id, worker="w") is False
    assert session.everything() == before


def test_a_job_that_another_session_holds_is_not_waited_for(db, session):
    job_id = session.one("enqueue", kind="k")
    with db.connect() as other, other.transaction():
        other.execute("select from jobs for update")
        session.execute("set lock_timeout = '5s'")
        assert session.one("claim_job", job_id=job_id, worker="w") is False
    assert session.one("claim_job", job_id=job_id, worker="w") is True


def test_an_unknown_job_is_an_error(session):
    unknown = uuid4()
    with pytest.raises(psycopg.Error) as refused:
        session.one("claim_job", job_id=unknown, worker="w")
    assert (refused.value.sqlstate, refused.value.diag.message_primary) == ("LH002", "job_unknown")
    assert str(unknown) in refused.value.diag.message_detail


def test_claim_and_claim_job_never_share_a_job(db, session):
    ids = db.insert(session, 400)

    def take(claimer, place):
        if place % 2:
            return [row.id for _ in range(60) for row in claimer.rows("claim", worker=f"w{place}", count=3)]
        return [job for job in ids if claimer.one("claim_job", job_id=job, worker=f"w{place}")]

    taken = [job for jobs in db.crowd(8, take) for job in jobs]
    assert sorted(taken) == sorted(ids)
