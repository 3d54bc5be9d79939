"""Laws of waiting: a condition that holds is returned, one that does not is named, and there is one way to wait."""

import re
from pathlib import Path

import pytest

from faults.waiting import astays, auntil, happens, stays, until

ROOT = Path(__file__).parents[1]


def never() -> list[int]:
    return []


def test_what_the_condition_returned_is_returned() -> None:
    values = iter([0, None, "", "found"])
    assert until(lambda: next(values), pause=0) == "found"


def test_a_condition_that_does_not_hold_in_time_is_named_with_its_last_value() -> None:
    with pytest.raises(TimeoutError, match=r"^not within 0\.01 s: the job has ended \(the condition returned \[\]\)$"):
        until(never, "the job has ended", within=0.01)
    with pytest.raises(TimeoutError, match=r"not within 0 s: .*until\(lambda: 1 > 2"):
        until(lambda: 1 > 2, within=0)  # noqa: PLR0133
    with pytest.raises(TimeoutError, match=r"the condition returned \[\]\)\nthe log$"):
        until(never, within=0, detail=lambda: "the log")
    with pytest.raises(TimeoutError, match="exists"):
        until((ROOT / "none").exists, within=0)


def test_a_condition_is_checked_once_more_than_there_is_time() -> None:
    """So that a machine that stood still fails nothing that has come to hold meanwhile."""
    assert until(lambda: True, within=-1)


async def test_the_same_on_an_event_loop_where_it_may_be_awaited() -> None:
    values = iter([0, "found"])

    async def asked() -> str | int:
        return next(values)

    assert await auntil(asked, pause=0) == "found"
    with pytest.raises(TimeoutError, match=r"not within 0 s: the job has ended \(the condition returned \[\]\)"):
        await auntil(never, "the job has ended", within=0)


async def test_what_must_stay_so_is_checked_all_the_while() -> None:
    stays(lambda: True, seconds=0)
    await astays(lambda: True, seconds=0)
    values = iter([True, True, False])
    with pytest.raises(AssertionError, match=r"no longer true: the worker lives \(the condition returned False\)"):
        stays(lambda: next(values), "the worker lives", seconds=60, pause=0)
    values = iter([True, False])
    with pytest.raises(AssertionError, match="no longer true"):
        await astays(lambda: next(values), seconds=60, pause=0)


def test_whether_it_happens_may_be_the_answer() -> None:
    assert happens(lambda: True, within=0)
    assert not happens(never, within=0)


def test_there_is_one_until() -> None:
    copies = re.compile(r"(?m)^\s*(?:async )?def (?:a?until|wait_for|wait_until|eventually)\(\s*(?:self, )?condition")
    files = [file for folder in ("tests", "faults") for file in (ROOT / folder).rglob("*.py")]
    found = {file.relative_to(ROOT).as_posix() for file in files if copies.search(file.read_text())}
    assert found == {"faults/waiting.py"}
