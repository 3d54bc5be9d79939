"""Laws of the statistics: what workers hand in is counted once, whatever others hand in, and read in steps of time."""

from datetime import timedelta

import psycopg
import pytest

from leasehold._histogram import BOUNDS, CLASSES


def row(queue="default", kind="k", waits=None, runs=None, **counts):
    """A tally; durations are given as {class: how many}."""
    classes = [[0] * CLASSES, [0] * CLASSES]
    for place, given in enumerate((waits or {}, runs or {})):
        for where, number in given.items():
            classes[place][where] = number
    return {"queue": queue, "kind": kind, "waits": classes[0], "runs": classes[1], **counts}


def add(session, rows, number=1, age=0.0, worker="w"):
    return session.one("statistics_add", worker=worker, number=number, age=age, rows=rows)


def read(session, clock, seconds=3600, **arguments):
    return session.rows("statistics", since=clock.now - timedelta(seconds=seconds), **arguments)


def test_python_and_the_database_have_the_same_classes(session):
    assert tuple(session.one("histogram_bounds")) == BOUNDS


def test_what_is_handed_in_is_found_in_every_length_of_time_and_for_every_view_of_it(session, clock):
    clock.advance(12)
    add(
        session, [row(success=3, waits={0: 1, 5: 2}, runs={7: 3}), row(queue="mail", kind="m", failed=2, dead=1)], age=5
    )
    for step, back in ((10, 12), (60, 12), (600, 12)):
        (all_of_it,) = read(session, clock, 1800, step=step)
        assert all_of_it.at == clock.now - timedelta(seconds=back)
        assert (all_of_it.success, all_of_it.failed, all_of_it.dead) == (3, 2, 1)
        assert (all_of_it.waits[0], all_of_it.waits[5], sum(all_of_it.waits)) == (1, 2, 3)
        assert (all_of_it.runs[7], sum(all_of_it.runs)) == (3, 3)
        (mail,) = read(session, clock, 1800, step=step, queues=["mail"])
        assert (mail.success, mail.failed, mail.dead) == (0, 2, 1)
        (kinds,) = read(session, clock, 1800, step=step, kinds=["k"])
        assert (kinds.success, kinds.failed) == (3, 0)
        assert read(session, clock, 1800, step=step, kinds=["k"], queues=["mail"]) == []


def test_a_tally_handed_in_again_does_not_count_again(session, clock):
    session.one("start_worker", worker="w")
    for number in (1, 1, 2, 2, 1):
        add(session, [row(success=1)], number)
    clock.advance(1)
    assert [found.success for found in read(session, clock)] == [2]


def test_many_workers_that_hand_in_at_once_lose_nothing_and_do_not_block_each_other_for_ever(db, session):
    lanes = [row(queue=f"q{n}", kind="k", success=1, runs={3: 1}) for n in range(5)]

    def hand_in(mine, place):
        mine.one("start_worker", worker=f"w{place}")
        for number in range(1, 6):
            mixed = lanes[place % 5 :] + lanes[: place % 5]
            add(mine, mixed, number, worker=f"w{place}")

    db.crowd(8, hand_in)
    query = "select sum(success), sum(runs[4]) from statistics where step = 600 and queue = '' and kind = ''"
    assert session.execute(query).fetchone() == (200, 200)
    per_queue = "select queue, sum(success) from statistics where step = 600 and queue <> '' and kind = '' group by 1"
    assert dict(session.execute(per_queue).fetchall()) == {f"q{n}": 40 for n in range(5)}


@pytest.mark.parametrize(
    ("number", "age", "rows"),
    [
        (0, 1, []),
        (1, -1, []),
        (1, 86401, []),
        (1, 1, {}),
        (1, 1, [row(queue="")]),
        (1, 1, [row(kind="x" * 201)]),
        (1, 1, [row(success=-1)]),
        (1, 1, [row(waits={0: -1})]),
        (1, 1, [row() | {"waits": [1, 2]}]),
        (1, 1, [row() | {"runs": [None] * CLASSES}]),
    ],
)
def test_a_tally_that_makes_no_sense_is_refused(session, number, age, rows):
    with pytest.raises(psycopg.Error) as refused:
        session.execute("select statistics_add('w', %s, %s, %s)", [number, age, psycopg.types.json.Jsonb(rows)])
    assert refused.value.sqlstate == "LH003"


@pytest.mark.parametrize("step", [0, 15, 86410, None])
def test_a_step_that_makes_no_sense_is_refused(session, step):
    with pytest.raises(psycopg.Error) as refused:
        session.execute("select * from statistics(now() - interval '1 hour', step => %s)", [step])
    assert refused.value.sqlstate == "LH003"


def test_more_than_two_thousand_steps_are_refused(session):
    with pytest.raises(psycopg.Error) as refused:
        session.execute("select * from statistics(now() - interval '1 day', step => 10)")
    assert refused.value.sqlstate == "LH003"


def test_the_answer_says_when_the_next_ten_seconds_begin(session, clock):
    clock.advance(3)
    assert add(session, [row(success=1)]) == pytest.approx(7)


def test_upkeep_samples_the_flow_once_a_minute_however_many_workers_call_it(db, session, clock):
    job = session.one("enqueue", kind="k")
    session.one("enqueue", kind="k", run_after="1 hour")
    session.one("enqueue", kind="k", exclusive_key="x")
    session.one("claim_job", job_id=job, worker="w")
    db.crowd(8, lambda mine, _: mine.rows("upkeep"))
    clock.advance(1)
    (sample,) = session.rows("flow", since=clock.now - timedelta(minutes=5))
    assert sample.at == clock.now - timedelta(seconds=1)
    assert (sample.created, sample.queued, sample.running, sample.retry, sample.dead) == (1, 1, 1, 0, 0)
    clock.advance(58)
    session.rows("upkeep")
    assert session.value("select count(*) from flow") == 1
    clock.advance(1)
    session.rows("upkeep")
    assert session.value("select count(*) from flow") == 2


def test_arrivals_are_counted_up_to_a_cap_and_estimated_beyond_it(db, session):
    begin = session.value("select moment_of(now(), 60) - interval '1 hour'")
    made_at = f"id_at('{begin.isoformat()}'::timestamptz + n * interval '0.1 second')"
    db.insert(session, 300, id=f"{made_at}")
    end = begin + timedelta(minutes=1)
    assert session.one("arrivals", since=begin, until=end, cap=1000) == 300
    # A hundred in the first ten seconds.
    assert session.one("arrivals", since=begin, until=end, cap=100) == pytest.approx(600, rel=0.05)


def test_old_figures_are_removed_and_the_coarser_ones_stay(session, clock):
    add(session, [row(success=1)])
    session.rows("upkeep")
    for hours, steps in ((3, [60, 600]), (48, [600]), (14 * 24, [])):
        clock.advance(hours * 3600)
        session.rows("upkeep")
        assert session.values("select distinct step from statistics order by 1") == steps
    assert session.value("select count(*) from flow where at < %s", clock.now - timedelta(days=14)) == 0


def test_upkeep_sweeps_whatever_goes_wrong_with_the_samples(session, clock):
    session.execute(
        "create or replace function sample_flow(at timestamptz, cap integer default 100000) returns void"
        " language plpgsql as $$ begin raise exception 'broken'; end $$"
    )
    job = session.one("enqueue", kind="k")
    session.one("claim_job", job_id=job, worker="w")
    clock.advance(3600)
    assert session.rows("upkeep")[0].swept == 1


def test_rates_show_what_waits_comes_and_goes(session):
    session.one("start_worker", worker="w", queues=["mail"])
    for _ in range(12):
        session.one("enqueue", kind="k", queue="mail")
    session.one("enqueue", kind="k", queue="lonely")
    session.one("enqueue", kind="k", queue="mail", run_after="1 hour")
    claimed = session.column("claim", worker="w", queues=["mail"], count=6)
    session.column("complete", worker="w", ids=sorted(claimed), attempts=[1] * 6)
    session.execute("select pause('stopped')")
    found = {rate.queue: rate for rate in session.rows("rates")}
    mail = found["mail"]
    assert (mail.ready, mail.ready_capped, mail.running, mail.paused, mail.served) == (6, False, 0, False, True)
    assert mail.in_rate == pytest.approx(12 / 60)
    assert mail.out_rate == pytest.approx(6 / 60)
    assert mail.oldest_seconds >= 0
    assert len(mail.recent) == 30
    assert not found["lonely"].served
    assert found["stopped"].paused
    assert [rate.queue for rate in session.rows("rates", queues=["lonely"])] == ["lonely"]
    assert {rate.queue: rate.in_rate for rate in session.rows("rates", kinds=["other"])} == {}


def test_with_much_traffic_rates_come_from_the_latest_jobs(db, session):
    # 300 of two queues in the last three seconds; only 100 are looked at.
    db.insert(
        session, 300, id="id_at(clock() - (300 - n) * interval '0.01 second')", queue="'q' || n % 2",
        created_at="clock() - (300 - n) * interval '0.01 second'",
    )  # fmt: skip
    query = "select queue, arrived / arrival_seconds from recent_traffic(clock(), 100, null) order by 1"
    for _, rate in session.execute(query).fetchall():
        assert 5 < rate < 60, "50 a second, seen from within the second; a stall makes it fewer"


def test_rates_give_the_tallied_minutes_in_order(session, clock):
    session.one("enqueue", kind="k")
    for number, ago in enumerate((60, 120), start=1):
        add(session, [row(success=number)], number, age=ago)
    (rate,) = session.rows("rates")
    assert rate.recent == [0] * 28 + [2, 1]


def test_handing_in_again_catches_the_naive_version(session, clock):
    session.mutate("statistics_add_v1", "and coalesce(w.tally, 0) < number", "")
    with pytest.raises(AssertionError):
        test_a_tally_handed_in_again_does_not_count_again(session, clock)


def test_handing_in_at_once_catches_one_that_overwrites(db, session):
    session.mutate("statistics_add_v1", "success = s.success + excluded.success", "success = excluded.success")
    with pytest.raises(AssertionError):
        test_many_workers_that_hand_in_at_once_lose_nothing_and_do_not_block_each_other_for_ever(db, session)
