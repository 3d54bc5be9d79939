"""Laws of operations: blocking and awaited they do the same, and return nothing that the caller may not see."""

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from leasehold._aio import run_blocking
from leasehold.db.call import Call
from leasehold.db.store import Seen, Store
from leasehold.errors import InvalidJob, JobUnknown
from leasehold.operate.caller import Caller
from leasehold.operate.jobs import RETRY, change_each
from leasehold.operate.operator import Operator
from leasehold.operate.refusals import Refusal, id_of, page_of, read_cursor, write_cursor


class Scripted:
    """A database that answers each call with the next result, or raises it."""

    def __init__(self, *results: Any) -> None:
        self.store: Any = None
        self._results = iter(results)
        self.blocked: list[bool] = []
        """Of each call, whether it was to block."""

    async def execute(self, _: Call[Any], *, blocking: bool) -> Any:
        self.blocked.append(blocking)
        result = next(self._results)
        if isinstance(result, Exception):
            raise result
        return result


async def operation(op: Operator, times: int) -> list[Any]:
    """Asks so often; an error of a call is one of the answers."""
    found: list[Any] = [op.caller.name]
    for _time in range(times):
        try:
            found.append(await op.ask(Call("", (), lambda rows: rows)))
        except InvalidJob as error:
            found.append(error.args[0])
    return found


RESULTS = (1, InvalidJob("refused"), 3)


async def test_blocking_and_awaited_operations_do_the_same() -> None:
    expected = ["ada", 1, "refused", 3]
    blocking, awaited = Scripted(*RESULTS), Scripted(*RESULTS)
    blocked = Operator(blocking, Caller("ada"), blocking=True)  # type: ignore[arg-type]
    assert run_blocking(operation(blocked, 3)) == expected
    assert await operation(Operator(awaited, Caller("ada")), 3) == expected  # type: ignore[arg-type]
    assert (blocking.blocked, awaited.blocked) == ([True] * 3, [False] * 3)


async def test_an_error_that_an_operation_does_not_expect_is_raised_by_both() -> None:
    with pytest.raises(JobUnknown):
        run_blocking(operation(Operator(Scripted(JobUnknown("x")), Caller("ada"), blocking=True), 1))  # type: ignore[arg-type]
    with pytest.raises(JobUnknown):
        await operation(Operator(Scripted(JobUnknown("x")), Caller("ada")), 1)  # type: ignore[arg-type]


def test_pages_join_to_the_whole_and_a_cursor_of_a_gone_item_is_refused() -> None:
    items = [f"né {n}" for n in range(7)]
    found, cursor = [], None
    while True:
        page, cursor = page_of(items, str, cursor, 3)
        found += page
        if cursor is None:
            break
        assert read_cursor(cursor) == found[-1]
    assert found == items
    for wrong in (write_cursor("gone"), "!", "é"):
        with pytest.raises(Refusal):
            page_of(items, str, wrong, 3)


def test_a_caller_asks_for_nothing_beyond_its_queues_and_kinds() -> None:
    caller = Caller("ada", queues=frozenset({"b", "a"}), kinds=frozenset({"k"}))
    assert caller.narrow() == {"queues": ["a", "b"], "kinds": ["k"]}
    assert caller.narrow(queue="a") == {"queues": ["a"], "kinds": ["k"]}
    assert caller.narrowed({"queue": "x"}) == {"queue": "x", "queues": ["a", "b"], "kinds": ["k"]}
    assert Caller("root").narrowed({"queue": "x"}) == {"queue": "x"}
    for wrong in ({"queue": "c"}, {"kind": "other"}):
        with pytest.raises(Refusal):
            caller.narrow(**wrong)


def test_an_id_is_written_as_one() -> None:
    job = uuid4()
    assert id_of(str(job).upper()) == job
    for wrong in ("", job.hex, f"{{{job}}}", f"{job}\n", f"urn:uuid:{job}"):
        with pytest.raises(Refusal):
            id_of(wrong)


async def test_several_jobs_are_looked_up_in_one_call_for_a_restricted_caller() -> None:
    jobs, now = [uuid4() for _ in range(3)], datetime.now(UTC)
    rows = [
        Seen(job, "k", queue, "dead", "FAILED", None, None, None, now, now, now, None)
        for job, queue in zip(jobs, "aba", strict=True)
    ]
    database = Scripted(rows, True, JobUnknown("pruned meanwhile"))
    database.store = Store("leasehold")
    op = Operator(database, Caller("ada", queues=frozenset({"a"})))  # type: ignore[arg-type]
    assert await change_each(op, RETRY, jobs) == 1
    assert len(database.blocked) == 3
