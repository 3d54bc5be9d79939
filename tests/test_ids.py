"""Ids: in order within a process, UUIDv7 by their bits, on the database's clock."""

import threading
import time
from uuid import RFC_4122, UUID

import pytest

from leasehold.db.store import IdMaker

HOUR = 3600 * 10**9


def ids(maker: IdMaker, count: int) -> list[UUID]:
    return [UUID(made) for made in maker.make(count)]


def one(maker: IdMaker) -> UUID:
    return ids(maker, 1)[0]


def milliseconds(made: UUID) -> int:
    return made.int >> 80


def test_ids_are_of_version_seven_and_carry_the_time() -> None:
    before = time.time_ns() // 10**6
    made = one(IdMaker())
    after = time.time_ns() // 10**6
    assert made.version == 7
    assert made.variant == RFC_4122
    assert before <= milliseconds(made) <= after


def test_ids_increase_within_a_process_across_threads() -> None:
    maker = IdMaker()
    ready = threading.Barrier(8)
    batches: list[list[UUID]] = []

    def work() -> None:
        ready.wait()
        batches.append([one(maker) for _ in range(5_000)])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for batch in batches:
        assert batch == sorted(batch)
    times = [made.int >> 64 for batch in batches for made in batch]
    assert len(set(times)) == 40_000  # not by their random bits, but by what comes before them


def test_ids_increase_though_the_clock_stands_still_or_goes_back() -> None:
    now = 10**18
    maker = IdMaker(clock=lambda: now)
    made = ids(maker, 10_000)
    now -= HOUR
    made += ids(maker, 100)
    assert made == sorted(made)
    assert len(set(made)) == len(made)


@pytest.mark.parametrize("wrong", [-HOUR, -1, 0, HOUR])
def test_ids_follow_the_databases_clock(wrong: int) -> None:
    maker = IdMaker(clock=lambda: time.time_ns() + wrong)
    assert not maker.follows
    maker.follow(database_ns=time.time_ns(), local_ns=maker.clock())
    assert maker.follows
    before = time.time_ns() // 10**6
    assert before - 1000 < milliseconds(one(maker)) < time.time_ns() // 10**6 + 1000


def test_a_maker_begun_anew_knows_nothing_of_the_database() -> None:
    maker = IdMaker(clock=lambda: 10**18)
    maker.follow(database_ns=0, local_ns=0)
    anew = maker.anew()
    assert anew.clock is maker.clock
    assert not anew.follows


def test_a_fraction_of_a_millisecond_counts() -> None:
    now = 10**18
    maker = IdMaker(clock=lambda: now)
    first = one(maker)
    now += 500_000
    second = one(maker)
    assert milliseconds(first) == milliseconds(second)
    assert (second.int >> 64 & 0xFFF) - (first.int >> 64 & 0xFFF) == 2048


def test_a_batch_is_in_order_and_of_version_seven_every_one() -> None:
    maker = IdMaker()
    made = ids(maker, 20_000) + ids(maker, 20_000)
    assert made == sorted(made)
    assert len({one.int >> 64 for one in made}) == 40_000
    assert {(one.version, one.variant) for one in made} == {(7, RFC_4122)}
    assert [str(one) for one in ids(maker, 3)] != [str(one) for one in ids(maker, 3)]
    assert maker.make(0) == []
