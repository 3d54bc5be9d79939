"""claim: every job to exactly one claimer, in claim order, and never more than was asked for."""

import random
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CLAIM_ORDER = "select id from jobs where state = 'queued' and run_at <= clock() order by priority desc, id"
CUT = "not exists (select from cut c where (h.rank, h.id) > (c.rank, c.id))"


def in_claim_order(rows) -> bool:
    places = [(-row.priority, row.id) for row in rows]
    return places == sorted(places)


def test_fifty_claimers_take_ten_thousand_jobs_exactly_once_each_call_in_order(db, session):
    db.insert(
        session,
        10_000,
        priority="(random() * 10 - 5)::smallint",
        kind="(array['a', 'b'])[1 + n % 2]",
        queue="(array['p', 'q'])[1 + n / 2 % 2]",
    )

    def claim_all(claimer, place):
        chance = random.Random(place)
        calls = []
        while True:
            count = chance.choice((1, 2, 7, 40, 150))
            rows = claimer.rows("claim", worker=f"w{place}", count=count)
            assert len(rows) <= count
            if rows:
                calls.append(rows)
            elif claimer.value("select count(*) from jobs where state = 'queued'") == 0:
                return calls

    answers = db.crowd(50, claim_all)
    calls = [rows for calls in answers for rows in calls]
    taken = [row.id for rows in calls for row in rows]
    assert len(taken) == len(set(taken)) == 10_000
    assert all(in_claim_order(rows) for rows in calls)
    owners = dict(
        session.execute("select id, lease_owner from jobs where state = 'running' and attempt = 1").fetchall()
    )
    assert owners == {row.id: f"w{place}" for place, calls in enumerate(answers) for rows in calls for row in rows}


@st.composite
def backlogs(draw):
    lanes = draw(st.integers(1, 7))
    sizes = draw(st.lists(st.integers(0, 70), min_size=lanes, max_size=lanes))
    levels = draw(st.sampled_from((1, 3, 100)))
    counts = draw(st.lists(st.integers(1, 120), min_size=1, max_size=4))
    return sizes, levels, counts, draw(st.integers(0, 2**20))


def fill(session, sizes, levels, seed) -> None:
    """A backlog in which each lane leans to its own priorities, and some jobs are not due."""
    chance = random.Random(seed)
    rows = [
        (f"q{lane % 3}", f"k{lane // 3}", chance.randrange(levels) + lane * levels // 4, chance.random() < 0.1)
        for lane, size in enumerate(sizes)
        for _ in range(size)
    ]
    chance.shuffle(rows)
    session.execute("truncate jobs")
    session.execute(
        "insert into jobs (max_attempts, state, queue, kind, priority, run_at)"
        " select 5, 'queued', q, k, p, now() + case when late then interval '1 day' else '0' end"
        " from unnest(%s::text[], %s::text[], %s::int[], %s::bool[]) t(q, k, p, late)",
        [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []],
    )


def drain(session, counts) -> list:
    taken = []
    while True:
        count = counts[len(taken) % len(counts)]
        ids = session.column("claim", worker="w", count=count)
        if not ids:
            return taken
        taken.extend(ids)


@given(backlogs())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_a_single_claimer_gets_everything_in_claim_order_across_queues_and_kinds(shared, backlog):
    sizes, levels, counts, seed = backlog
    fill(shared, sizes, levels, seed)
    expected = shared.values(CLAIM_ORDER)
    assert drain(shared, counts) == expected


@given(backlogs())
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_what_others_hold_is_passed_over_and_the_rest_stays_in_claim_order(shared, module_db, backlog):
    sizes, levels, counts, seed = backlog
    fill(shared, sizes, levels, seed)
    with module_db.connect() as other, other.transaction():
        held = set(other.values("select id from jobs where hashtextextended(id::text, %s) %% 3 = 0 for update", seed))
        expected = [job for job in shared.values(CLAIM_ORDER) if job not in held]
        assert drain(shared, counts) == expected


def test_the_law_of_order_catches_a_merge_without_a_cut(session):
    session.mutate("lock_in_lanes", CUT, "true")
    # One of the six lanes holds the fifty best, and the merge reads only a share of each.
    fill(session, [50] * 6, 1, 0)
    session.execute("update jobs set priority = case when queue = 'q0' and kind = 'k0' then 9 else 0 end")
    expected = session.values(CLAIM_ORDER)
    assert drain(session, [40]) != expected


def test_only_the_given_queues_and_kinds_are_claimed(db, session):
    db.insert(session, 90, kind="(array['a', 'b', 'c'])[1 + n % 3]", queue="(array['p', 'q', 'r'])[1 + n / 3 % 3]")
    rows = session.rows("claim", worker="w", queues=["p", "q"], kinds=["c"], count=100)
    assert {(row.queue, row.kind) for row in rows} == {("p", "c"), ("q", "c")}
    assert len(rows) == 20
    assert session.rows("claim", worker="w", queues=["p", "q"], kinds=["c"], count=100) == []
    assert session.rows("claim", worker="w", queues=[], kinds=["a"], count=100) == []
    assert session.rows("claim", worker="w", queues=["nobody's"], count=100) == []
    assert len(session.rows("claim", worker="w", queues=["p"], count=100)) == 20
    assert len(session.rows("claim", worker="w", count=100)) == 50


def test_a_queue_named_twice_counts_once(db, session):
    db.insert(session, 50)
    rows = session.rows("claim", worker="w", queues=["default", "default"], kinds=["k", "k"], count=30)
    assert len({row.id for row in rows}) == len(rows) == 30


def test_lanes_narrow_a_claim_to_what_lies_behind_a_place(db, session):
    db.insert(session, 40, priority="n % 4", kind="(array['a', 'b'])[1 + n / 4 % 2]")
    order = session.values("select id from jobs where kind = 'a' order by -priority, id")
    place = session.job(order[6])
    lane = {"queue": "default", "kind": "a", "priority": place["priority"], "id": str(place["id"])}
    assert session.column("claim", worker="w", count=5, lanes=[lane]) == order[7:12]
    assert session.column("claim", worker="w", count=50, lanes=[{"queue": "default", "kind": "a"}]) == [
        *order[:7],
        *order[12:],
    ]


@pytest.mark.parametrize("jobs", [2, 3000])
@pytest.mark.parametrize("lanes", [1, 6])
@pytest.mark.parametrize("statistics", ["never", "when empty", "when full"])
def test_a_claim_of_one_takes_and_locks_one_whatever_the_planner_believes(shared, module_db, jobs, lanes, statistics):
    shared.execute("alter table jobs set (autovacuum_enabled = off)")
    shared.execute("delete from pg_statistic where starelid = 'jobs'::regclass")
    if statistics == "when empty":
        shared.execute("analyze jobs")
    module_db.insert(shared, jobs, kind=f"'k' || n % {lanes}", priority="n % 3")
    if statistics == "when full":
        # Full of what is not there any more.
        shared.execute("analyze jobs")
        shared.execute("delete from jobs where ctid not in (select ctid from jobs limit 50)")
        jobs = min(jobs, 50)
    with module_db.connect() as claimer, claimer.transaction(force_rollback=True):
        assert len(claimer.rows("claim", worker="w")) == 1
        free = shared.values("select id from jobs where state = 'queued' for update skip locked")
        assert len(free) == jobs - 1
    assert len(shared.rows("claim", worker="w")) == 1
    assert shared.value("select count(*) from jobs where state = 'running'") == 1


def test_a_claim_under_repeatable_read_is_right_or_asks_to_be_repeated(db, session):
    db.insert(session, 300, kind="(array['a', 'b'])[1 + n % 2]")
    with db.connect() as late:
        late.execute("begin isolation level repeatable read")
        late.value("select count(*) from jobs")  # the snapshot is taken here
        session.rows("claim", worker="w")
        with pytest.raises(psycopg.errors.SerializationFailure):
            late.rows("claim", worker="late")
        late.execute("rollback")
    assert session.value("select count(*) from jobs where lease_owner = 'late'") == 0

    def claim_all(claimer, place):
        claimer.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        taken = []
        while True:
            try:
                with claimer.transaction():
                    ids = claimer.column("claim", worker=f"w{place}", count=5)
            except psycopg.errors.SerializationFailure:
                continue
            if not ids and claimer.value("select count(*) from jobs where state = 'queued'") == 0:
                return taken
            taken.extend(ids)

    taken = [job for jobs in db.crowd(6, claim_all) for job in jobs]
    assert len(taken) == len(set(taken)) == 299


def test_a_repeated_claim_returns_the_same_jobs(db, session):
    db.insert(session, 20, kind="(array['a', 'b'])[1 + n % 2]")
    claim_id = uuid4()
    first = session.rows("claim", worker="w", count=6, claim_id=claim_id)
    before = session.everything()
    again = session.rows("claim", worker="w", count=6, claim_id=claim_id)
    assert [tuple(row) for row in again] == [tuple(row) for row in first]
    assert session.everything() == before
    session.column("complete", worker="w", ids=[first[0].id], attempts=[1])
    assert [row.id for row in session.rows("claim", worker="w", count=6, claim_id=claim_id)] == [
        row.id for row in first[1:]
    ]


def test_a_claim_repeated_while_the_first_is_under_way_returns_the_same_jobs(db, session):
    db.insert(session, 50)
    claim_id = uuid4()
    repeated = db.crowd(8, lambda claimer, _: claimer.column("claim", worker="w", count=5, claim_id=claim_id))
    assert all(ids == repeated[0] for ids in repeated)
    assert session.value("select count(*) from jobs where state = 'running'") == 5


def test_an_idle_claim_leaves_no_trace_to_be_repeated(session):
    claim_id = uuid4()
    assert session.rows("claim", worker="w", claim_id=claim_id) == []
    job_id = session.one("enqueue", kind="k")
    assert session.column("claim", worker="w", claim_id=claim_id) == [job_id]


def test_a_claim_that_finds_nothing_writes_nothing(session) -> None:
    """Else an idle worker's looks would each wait for the disk, and the next job behind them."""
    session.one("start_worker", worker="w")
    with session.transaction():
        assert session.rows("claim", worker="w", count=10, claim_id=uuid4()) == []
        assert session.value("select pg_current_xact_id_if_assigned()") is None


def test_a_repeated_claim_is_answered_although_nothing_else_is_there(session) -> None:
    token = uuid4()
    session.one("enqueue", kind="k")
    first = session.rows("claim", worker="w", count=10, claim_id=token)
    assert len(first) == 1
    assert session.rows("claim", worker="w", count=10, claim_id=token) == first
    assert session.rows("claim", worker="w", count=10, claim_id=uuid4()) == []


def numbered(number, version=7):
    return UUID(f"00000000-{number:04x}-{version}000-8000-000000000000")


@pytest.mark.parametrize("function", ["claim", "claim_each"])
def test_a_claim_that_comes_after_a_later_one_of_its_worker_takes_nothing(session, function):
    first, second = (session.one("enqueue", kind="k") for _ in range(2))
    assert session.column(function, worker="w", claim_id=numbered(2)) == [first]
    assert session.column(function, worker="w", claim_id=numbered(1)) == []
    assert session.column(function, worker="w", claim_id=numbered(2)) == [first]
    assert session.column(function, worker="other", claim_id=numbered(1)) == [second]


def test_claims_of_older_releases_are_in_no_order(session):
    first, second = (session.one("enqueue", kind="k") for _ in range(2))
    assert session.column("claim", worker="w", claim_id=numbered(2, version=4)) == [first]
    assert session.column("claim", worker="w", claim_id=numbered(1, version=4)) == [second]


def test_a_claim_one_by_one_is_noted_though_it_takes_nothing(session):
    assert session.column("claim_each", worker="w", claim_id=numbered(2)) == []
    session.one("enqueue", kind="k")
    assert session.column("claim", worker="w", claim_id=numbered(1)) == []
    assert len(session.column("claim", worker="w", claim_id=numbered(3))) == 1


def compressed(db, session, most):
    """100 jobs of 6.4 kB each that are stored in a hundredth of it, and claims that return `most` bytes."""
    session.execute(
        f"create or replace function max_claim_bytes() returns integer language sql stable parallel safe return {most}"
    )
    text = "jsonb_build_object('t', repeat('x', 6400))"
    db.insert(session, 90, queue="'q'", kind="'a'", payload=text)
    db.insert(session, 10, queue="'q'", kind="'b'", payload=text)


def test_a_claim_is_cut_by_the_bytes_that_payloads_have_not_by_the_most_they_could_have(db, session):
    compressed(db, session, 1_000_000)
    assert session.value("select sum(most_bytes(payload)) from jobs") > 1_500_000
    assert len(session.rows("claim", worker="w", count=100)) == 100


@pytest.mark.parametrize("bytes_more", [0, 968, 1936])
def test_a_claim_that_has_no_room_left_in_a_later_step_says_that_there_is_more(db, session, bytes_more):
    """Two lanes are claimed in steps, and the first may use all the room."""
    for kind, count in (("a", 100), ("b", 5)):
        session.execute(
            "select enqueue(%s, jsonb_build_object('x', repeat('y', 960)), queue => 'q') from generate_series(1, %s)",
            [kind, count],
        )
    most = 71732 + bytes_more
    session.execute(
        f"create or replace function max_claim_bytes() returns integer language sql stable parallel safe return {most}"
    )
    listener = db.connect()
    listener.execute("listen leasehold")
    assert 70 < len(session.rows("claim", worker="w", kinds=["a", "b"], count=100)) < 80
    session.execute("notify leasehold, 'end'")
    assert [note.payload for note in listener.notifies(timeout=60, stop_after=2)] == ["q", "end"]


def test_a_claim_is_cut_by_the_text_that_it_returns_not_by_what_is_stored(session):
    """1e990 is 16 bytes as stored and 991 as text."""
    heavy = """('{"a": [' || repeat('1e990,', 99) || '1e990]}')::jsonb"""
    session.execute(f"select enqueue('k', {heavy}) from generate_series(1, 50)")
    session.execute(
        "create or replace function max_claim_bytes() returns integer language sql stable parallel safe return 1000000"
    )
    for function in ("claim", "claim_each"):
        sizes = session.values(f"select octet_length(payload::text) from {function}('w', count => 50)")
        assert 0 < sum(sizes) <= (1_000_000 if function == "claim" else 1_100_000)


@pytest.mark.parametrize("kinds", [["a"], ["a", "b"]])
def test_a_claim_that_was_cut_by_bytes_says_that_there_is_more(db, session, kinds):
    compressed(db, session, 300_000)
    listener = db.connect()
    listener.execute("listen leasehold")
    assert 40 <= len(session.rows("claim", worker="w", kinds=kinds, count=100)) < 50
    session.execute("notify leasehold, 'end'")
    assert [note.payload for note in listener.notifies(timeout=60, stop_after=2)] == ["q", "end"]
