"""Reports with long texts: they arrive as they were, and sending them does not hold up the event loop."""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from leasehold import App
from leasehold.context import LogLine
from leasehold.db.call import Call
from leasehold.db.store import ClaimedJob, Store
from leasehold.outcome import Error, Failed, Outcome, Success
from leasehold.worker.finisher import Outbox
from leasehold.worker.outcomes import NO_RESULT
from tests.worker.conftest import row, working

Sql = psycopg.Connection[dict[str, Any]]

QUOTES = json.dumps('"' * 500_000)
"""A result of the largest size, made of what has to be escaped."""

ODD = [
    None, "", "null", "NULL", "{}", "{,}", '"', "\\", '\\"', "\\\\", "a,b", " ", "\n\t\r", "\x01\x7f", "é 漢 🙂", "'",
    "%s", ["{", "}", '"', None], {"\\": {'"': ["\\n"]}}, [], {}, 0, 1.5, True,
]  # fmt: skip


async def test_results_arrive_as_they_were_returned(app: App, sql: Sql) -> None:
    @app.task(kind="odd")
    async def odd(place: int) -> Any:
        return ODD[place]

    jobs = [await odd.aenqueue(place) for place in range(len(ODD))]
    async with working(app, slots=len(ODD)):
        assert [await job.aresult(60) for job in jobs] == ODD
    assert row(sql, jobs[0])["result"] is None


def _claimed() -> ClaimedJob:
    return ClaimedJob(str(uuid4()), 1, str(uuid4()), "kind", "default", "{}", 0, 1, 30.0, 0)


Texts = list[str]


@pytest.mark.parametrize(
    "call",
    [
        lambda store, jobs, texts: store.complete("w", jobs, texts),
        lambda store, jobs, texts: store.completed("w", jobs, texts),
        lambda store, jobs, texts: store.add_logs("w", jobs, [f"[{text}]" for text in texts]),
        lambda store, jobs, texts: store.report_each("w", jobs, [f'{{"result": {text}}}' for text in texts]),
        lambda store, jobs, texts: store.renew("w", jobs, [(0.5, text) for text in texts]),
    ],
    ids=["complete", "completed", "add_logs", "report_each", "renew"],
)
def test_long_texts_cost_next_to_nothing_to_send(
    sql: Sql, call: Callable[[Store, list[ClaimedJob], Texts], Call[Any]]
) -> None:
    jobs = [_claimed() for _ in range(3)]
    sent = call(Store("leasehold"), jobs, [QUOTES, "1", QUOTES])
    began = time.thread_time()  # not of the clock: the machine may be busy
    sql.execute(sent.sql, sent.args)
    assert time.thread_time() - began < 0.5  # seconds; escaped by the driver, they take three


async def _batches(outcomes: list[Outcome], lines: Sequence[LogLine] = ()) -> list[int]:
    outbox, sizes = Outbox(), []
    for outcome in outcomes:
        outbox.put(_claimed(), outcome, lines)
    while sum(sizes) < len(outcomes):
        sizes.append(len(await outbox.take()))
    assert outbox.backlog == len(outcomes)
    outbox.answered(len(outcomes))
    assert outbox.empty.is_set()
    return sizes


async def test_a_batch_of_reports_is_bounded_in_number_and_in_size() -> None:
    failed = Failed(error=Error(type="E", message="", traceback="t" * 1000), retry_after=None)
    assert await _batches([NO_RESULT] * 2500) == [1000, 1000, 500]
    assert await _batches([Success("1" * 1_000_000)] * 10) == [4, 4, 2]
    assert await _batches([NO_RESULT] * 10, [(0.0, "INFO", "x" * 500_000)] * 2) == [4, 4, 2]
    assert await _batches([failed] * 10, [(0.0, "INFO", "x" * 999_000)]) == [4, 4, 2]
    assert await _batches([Success("1" * 9_000_000)] * 2) == [1, 1]
    assert await _batches([NO_RESULT, Success("1" * 9_000_000), NO_RESULT]) == [1, 2]
