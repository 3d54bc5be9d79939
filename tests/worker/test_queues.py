"""Turns between queues."""

from collections import Counter
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faults.waiting import auntil
from leasehold import App, ConfigError
from leasehold.worker.claimer import QueuePicker
from leasehold.worker.options import parse_queues
from tests.worker.conftest import working

weights = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 50), min_size=1)


@given(weights)
def test_full_queues_are_served_in_proportion_to_their_weights(weights: dict[str, int]) -> None:
    picker = QueuePicker(weights)
    served: Counter[str] = Counter()
    rounds = 10 * sum(weights.values())
    for _ in range(rounds):
        queues = picker.next()
        assert queues is not None
        (queue,) = queues
        served[queue] += 1
        assert picker.took(queues, 1, end_reached=False)
    for queue, weight in weights.items():
        assert abs(served[queue] - 10 * weight) <= 1


@given(weights)
def test_a_queue_that_was_empty_starts_level_and_does_not_catch_up(weights: dict[str, int]) -> None:
    picker = QueuePicker({**weights, "late": 1})
    picker.took(["late"], 0, end_reached=True)
    for _ in range(500):
        queues = picker.next()
        assert queues != ["late"]
        picker.took(queues, 1, end_reached=False)
    picker.wake("late")
    turns = 0
    for _ in range(20):
        queues = picker.next()
        turns += queues == ["late"]
        picker.took(queues, 1, end_reached=False)
    assert turns <= 20 / 2 + 1


def test_when_every_queue_was_found_empty_there_is_nothing_to_do_until_a_notification() -> None:
    picker = QueuePicker({"a": 1, "b": 2})
    assert picker.took(["a"], 0, end_reached=True)
    assert not picker.took(["b"], 2, end_reached=True)
    picker.wake("b")
    assert picker.next() == ("b",)
    picker.wake("")
    assert picker.took(["b"], 0, end_reached=True)


def test_queues_without_weights_are_looked_into_at_once() -> None:
    assert QueuePicker(None).next() is None
    assert QueuePicker(["a", "b"]).next() == ("a", "b")


def test_how_queues_are_written() -> None:
    assert parse_queues("mail, reports") == ["mail", "reports"]
    assert parse_queues("mail:3,reports") == {"mail": 3, "reports": 1}


@pytest.mark.parametrize("text", ["", " , ", "mail:0", "mail:x", ":3", "mail:1001"])
def test_queues_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_queues(text)


async def test_a_busy_queue_does_not_starve_its_neighbour(app: App, sql: psycopg.Connection[dict[str, Any]]) -> None:
    order: list[str] = []

    @app.task(kind="note")
    async def note(queue: str) -> None:
        order.append(queue)

    await app.aenqueue_many(note.using(queue="busy", priority=9).intent("busy") for _ in range(300))
    await app.aenqueue_many(note.using(queue="quiet").intent("quiet") for _ in range(50))
    async with working(app, slots=2, queues={"busy": 3, "quiet": 1}):
        await auntil(lambda: len(order) == 350)
    first = Counter(order[:100])
    assert 15 <= first["quiet"] <= 35
