"""Laws of outcomes: signals validate and travel, errors become bounded, storable text."""

import copy
import os
import pickle
import time
import traceback
from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold._texts import MAX_MESSAGE, MAX_TRACEBACK, text_of
from leasehold.outcome import (
    Cancel,
    Cancelled,
    Error,
    Failed,
    Lost,
    Outcome,
    Released,
    Retry,
    Signal,
    Snooze,
    Snoozed,
    Success,
)
from tests.timing import bound

ERROR = Error(type="ValueError", message="no", traceback="")
BAD_DURATIONS = [
    -1,
    -0.001,
    float("nan"),
    float("inf"),
    timedelta(days=3654),
    timedelta(seconds=-1),
    10**400,
    True,
]


def recorded(error: BaseException) -> Error:
    try:
        raise error  # noqa: TRY301 - only a raised error has a traceback
    except BaseException as caught:  # noqa: BLE001 - the test records whatever was raised
        return Error.from_exception(caught)


@pytest.mark.parametrize("bad", [*BAD_DURATIONS, "soon"], ids=lambda bad: str(bad)[:12])
@pytest.mark.parametrize("build", [Retry, Snooze, Snoozed, lambda d: Failed(error=ERROR, retry_after=d)])
def test_a_senseless_duration_is_refused(build: Any, bad: object) -> None:
    with pytest.raises(ValueError, match="after"):
        build(bad)


def test_the_refusal_names_the_value() -> None:
    with pytest.raises(ValueError, match=r"Snooze\(after=...\): -5 "):
        Snooze(-5)


@given(st.floats(0, 3600 * 24 * 3650))
def test_seconds_and_timedeltas_are_the_same(after: float) -> None:
    assert Snooze(after).after == Retry(after).after == after
    delta = timedelta(seconds=after)
    assert Snooze(delta).after == Retry(delta).after == delta.total_seconds()


@pytest.mark.parametrize(
    "signal",
    [
        Retry(),
        Retry(5),
        Retry(timedelta(minutes=1), "busy"),
        Retry(reason="x"),
        Snooze(3),
        Cancel("why"),
        Cancel(),
    ],
    ids=str,
)
def test_signals_survive_pickle_and_copy(signal: Signal) -> None:
    for twin in (pickle.loads(pickle.dumps(signal)), copy.copy(signal)):  # noqa: S301 - our own bytes
        assert type(twin) is type(signal)
        assert vars(twin) == vars(signal)
        assert str(twin) == str(signal)


def test_signals_say_what_they_ask_for() -> None:
    assert str(Retry(timedelta(minutes=1), "busy")) == "retry after 60 s: busy"
    assert str(Retry()) == "retry"
    assert str(Snooze(1.5)) == "snooze for 1.5 s"
    assert str(Cancel("no such user")) == "no such user"


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (Success("1"), "success 1"),
        (Success(None), "success None"),
        (Failed(error=ERROR, retry_after=2.0), "failed 2.0 False"),
        (Failed(error=ERROR, retry_after=None, fatal=True), "failed None True"),
        (Snoozed(3.0), "snoozed 3.0"),
        (Cancelled("why"), "cancelled why"),
        (Released(), "released"),
        (Lost(), "lost"),
    ],
)
def test_outcomes_are_distinguished_by_match(outcome: Outcome, word: str) -> None:
    match outcome:
        case Success(result):
            said = f"success {result}"
        case Failed(retry_after=after, fatal=fatal):
            said = f"failed {after} {fatal}"
        case Snoozed(after):
            said = f"snoozed {after}"
        case Cancelled(reason):
            said = f"cancelled {reason}"
        case Released():
            said = "released"
        case Lost():
            said = "lost"
    assert said == word


def test_outcomes_are_frozen_values() -> None:
    assert Snoozed(1.0) == Snoozed(1.0)
    with pytest.raises(FrozenInstanceError):
        Snoozed(1.0).after = 2.0  # type: ignore[misc]
    assert not hasattr(Snoozed(1.0), "__dict__")


def test_the_class_is_qualified_except_builtins() -> None:
    class Local(Exception):
        pass

    assert recorded(ValueError("x")).type == "ValueError"
    assert recorded(Local()).type == f"{__name__}.test_the_class_is_qualified_except_builtins.<locals>.Local"


@given(st.text(st.characters() | st.sampled_from("\0\ud800\udfff"), max_size=60).map(lambda t: t * 200))
def test_text_is_bounded_and_storable_whatever_the_message(message: str) -> None:
    error = recorded(RuntimeError(message))
    assert len(error.message) <= MAX_MESSAGE
    assert len(error.traceback) <= MAX_TRACEBACK
    for text in (error.message, error.traceback):
        text.encode("utf-8")
        assert "\0" not in text


def test_a_short_message_is_kept_and_a_long_one_keeps_head_and_tail() -> None:
    assert recorded(ValueError("x" * MAX_MESSAGE)).message == "x" * MAX_MESSAGE
    cut = recorded(ValueError("begin" + "x" * 10**6 + "end")).message
    assert len(cut) == MAX_MESSAGE
    assert cut.startswith("beginx")
    assert cut.endswith("xend")
    assert "cut: 1,000,008 characters in all" in cut


def test_an_exception_that_cannot_speak_is_recorded() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise KeyError("broken")

    error = recorded(Mute())
    assert error.message == "<no text: str() of Mute raised KeyError>"
    assert "Mute" in error.traceback


def test_causes_contexts_and_groups_are_in_the_traceback() -> None:
    def chained() -> None:
        try:
            os.environ["THE_CAUSE"]
        except KeyError as cause:
            raise ValueError("the effect") from cause

    with pytest.raises(ValueError, match="the effect") as caught:
        chained()
    text = Error.from_exception(caught.value).traceback
    assert "THE_CAUSE" in text
    assert "direct cause" in text
    group = recorded(ExceptionGroup("many", [OSError("first"), caught.value]))
    assert all(part in group.traceback for part in ("many", "first", "the effect", "THE_CAUSE"))


def call_from(module: str, function: Any) -> None:
    """Call the function from a frame that belongs to the module."""
    scope: dict[str, Any] = {"__name__": module, "function": function}
    exec("def caller():\n    function()\ncaller()", scope)  # noqa: S102 - the frame's module is the point


def failing() -> None:
    raise ValueError("in the task")


@pytest.mark.parametrize(
    ("module", "stripped"),
    [("leasehold.worker.run", True), ("leasehold.worker", True), ("leasehold.workers", False)],
)
def test_the_workers_frames_on_top_are_left_out(module: str, stripped: bool) -> None:
    with pytest.raises(ValueError, match="in the task") as caught:
        call_from(module, failing)
    # pytest's own frame is on top: drop it, as the worker would be the outermost.
    assert caught.value.__traceback__ is not None
    inner = caught.value.__traceback__.tb_next
    assert inner is not None
    text = Error.from_exception(caught.value.with_traceback(inner.tb_next)).traceback
    assert "in failing" in text
    assert ("in caller" not in text) is stripped


def test_an_error_of_the_worker_itself_keeps_its_frames() -> None:
    scope: dict[str, Any] = {"__name__": "leasehold.worker.run", "raises": pytest.raises}
    source = "def broken():\n    with raises(ZeroDivisionError) as caught:\n        1 / 0\n    return caught.value"
    exec(source, scope)  # noqa: S102 - the frame's module is the point
    assert "in broken" in Error.from_exception(scope["broken"]()).traceback


def test_an_exception_that_was_never_raised_is_recorded() -> None:
    error = Error.from_exception(ValueError("fresh"))
    assert error == Error(type="ValueError", message="fresh", traceback="ValueError: fresh\n")


def chain(length: int) -> BaseException:
    error = ValueError("the last")
    for n in range(length):
        before = error
        error = ValueError(f"number {n}")
        error.__context__ = before
    return error


@pytest.mark.parametrize("error", [chain(80_000), ExceptionGroup("the group", [ValueError()] * 200_000)])
def test_a_chain_or_group_of_any_length_is_formatted_at_once(error: BaseException) -> None:
    began = time.monotonic()
    text = Error.from_exception(error).traceback
    assert time.monotonic() - began < bound(1)
    assert "more than 100 exceptions" in text
    assert text.endswith(f"{type(error).__name__}: {error}\n")


def test_a_short_chain_is_formatted_as_python_does() -> None:
    error = chain(50)
    assert Error.from_exception(error).traceback == text_of("".join(traceback.format_exception(error)), MAX_TRACEBACK)
