"""Laws of the drain outlook: what becomes of a backlog, in words that people act on."""

from typing import Any

import pytest

from leasehold._drain_outlook import about, drain_outlook

BUSY: dict[str, Any] = {"ready": 21_000, "in_rate": 10.0, "out_rate": 20.0}


@pytest.mark.parametrize(
    ("changes", "outlook", "words"),
    [
        ({}, "clearing", "clears in ~35 min"),
        ({"capped": True, "ready": 10_000}, "clearing", "clears in more than 17 min"),
        ({"out_rate": 10_000.0, "ready": 9_990 * 20}, "clearing", "clears in ~20 s"),
        ({"in_rate": 32.0}, "growing", "growing 12/s, will not drain"),
        ({"in_rate": 20.5}, "steady", "steady"),
        ({"ready": 150}, "steady", "steady"),
        ({"in_rate": 20.5, "ready": 150}, "steady", "steady"),
        ({"in_rate": 0.5, "out_rate": 0.0}, "growing", "growing 0.5/s, will not drain"),
        ({"in_rate": 0.05, "out_rate": 0.0, "ready": 2, "oldest": 8.0}, "steady", "steady"),
        ({"in_rate": 0.05, "out_rate": 0.0, "ready": 2, "oldest": 61.0}, "growing", "growing 0.05/s, will not drain"),
        ({"in_rate": 5.0, "out_rate": 0.0, "ready": 21, "oldest": 4.0}, "growing", "growing 5/s, will not drain"),
        ({"in_rate": 32.0, "ready": 1200, "oldest": 50.0}, "steady", "steady"),
        ({"in_rate": 32.0, "ready": 1201, "oldest": 50.0}, "growing", "growing 12/s, will not drain"),
        ({"in_rate": 32.0, "ready": 1000, "oldest": 50.0, "capped": True}, "growing", "growing 12/s, will not drain"),
        ({"in_rate": 0.0, "out_rate": 0.0, "ready": 7}, "waiting", "7 waiting, none finished in the last minute"),
        ({"ready": 0}, "empty", "empty"),
        ({"paused": True}, "paused", "paused, 21,000 waiting"),
        ({"paused": True, "ready": 0}, "paused", "paused"),
        ({"served": False}, "unserved", "no worker serves it"),
        ({"served": False, "ready": 0}, "empty", "empty"),
        ({"max_running": 0}, "blocked", "limited to 0, nothing starts"),
    ],
)
def test_a_queue_is_judged_by_what_waits_and_what_comes_and_goes(
    changes: dict[str, Any], outlook: str, words: str
) -> None:
    found = drain_outlook(**BUSY | changes)
    assert (found.outlook, found.words) == (outlook, words)


def test_the_verdict_is_data_too() -> None:
    assert drain_outlook(**BUSY).clears_in == 2100
    assert drain_outlook(**BUSY | {"in_rate": 32.0}).grows_by == 12


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (42, "42 s"), (89, "89 s"), (2100, "35 min"), (9000, "2 h"), (200_000, "2 days")],
)
def test_lengths_of_time_are_said_as_people_say_them(seconds: float, words: str) -> None:
    assert about(seconds) == words
