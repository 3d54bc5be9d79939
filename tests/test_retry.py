"""Laws of retry policies: bounds, caps, fair jitter, and who gives up when."""

import random
import statistics
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.durations import MAX_SECONDS, seconds
from leasehold.errors import ConfigError
from leasehold.retry import (
    USUAL_ATTEMPTS,
    CallablePolicy,
    ExponentialBackoff,
    FixedDelay,
    NoRetry,
    RetryPolicy,
    as_policy,
)

ERROR = RuntimeError("boom")
bases = st.floats(0, 600)
factors = st.floats(1, 1e300) | st.integers(1, 10**6)
counts = st.integers(1, 10**6)


@given(bases, factors, counts, st.floats(0, 1, exclude_max=True))
def test_the_delay_lies_between_zero_and_the_cap(base: float, factor: float, failures: int, drawn: float) -> None:
    policy = ExponentialBackoff(base=base, factor=factor, random=lambda: drawn)
    delay = policy.delay(failures, ERROR)
    assert delay is not None
    assert 0 <= delay <= policy.ceiling(failures) <= policy.cap


@given(bases, factors, counts)
def test_waits_never_get_shorter_as_failures_grow(base: float, factor: float, failures: int) -> None:
    policy = ExponentialBackoff(base=base, factor=factor, jitter="none")
    assert policy.ceiling(failures) <= policy.ceiling(failures + 1)
    assert policy.ceiling(1) == base


def test_the_waits_double_up_to_the_cap_and_never_overflow() -> None:
    policy = ExponentialBackoff(jitter="none")
    assert [policy.delay(n, ERROR) for n in range(1, 13)] == [4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600]
    assert policy.delay(10**6, ERROR) == 3600
    assert ExponentialBackoff(base=0).delay(10**6, ERROR) == 0


@pytest.mark.parametrize("drawn", [0.0, 0.5, 1.0])
def test_the_usual_waits_begin_within_5_s_stay_within_an_hour_and_last_a_day(drawn: float) -> None:
    policy = ExponentialBackoff(random=lambda: drawn)
    waits = [policy.delay(n, ERROR) or 0.0 for n in range(1, USUAL_ATTEMPTS)]
    assert 0 < waits[0] <= 5
    assert max(waits) <= 3600
    assert sum(waits) >= 86_400
    # An hour during which every attempt fails: there are more.
    assert sum(waits[: USUAL_ATTEMPTS // 2]) >= 3600


def test_full_jitter_is_uniform() -> None:
    policy = ExponentialBackoff(base=8, jitter="full", random=random.Random(7).random)
    drawn = [policy.delay(1, ERROR) or 0.0 for _ in range(20_000)]
    assert statistics.mean(drawn) == pytest.approx(4, rel=0.02)
    tenths = statistics.quantiles(drawn, n=10)
    assert tenths == pytest.approx([0.8 * k for k in range(1, 10)], rel=0.06)


def test_the_random_source_decides_and_does_not_count_for_equality() -> None:
    assert ExponentialBackoff(base=10, jitter="full", random=lambda: 0.25).delay(1, ERROR) == 2.5
    assert ExponentialBackoff(base=10, random=lambda: 0.25).delay(1, ERROR) == 8.5
    assert ExponentialBackoff(random=lambda: 0.25) == ExponentialBackoff()


@pytest.mark.parametrize("make", [ExponentialBackoff, lambda **types: FixedDelay(5, **types)])
def test_fatal_goes_before_only_and_only_before_the_rest(make: Any) -> None:
    policy = make(fatal=(KeyError,), only=(LookupError,))
    assert policy.delay(1, KeyError()) is None
    assert policy.delay(1, IndexError()) is not None
    assert policy.delay(1, ValueError()) is None
    assert make().delay(1, ValueError()) is not None


@pytest.mark.parametrize("policy", [ExponentialBackoff(), FixedDelay(1), NoRetry(), CallablePolicy(lambda *_: 1)])
def test_every_policy_is_a_policy(policy: RetryPolicy) -> None:
    assert isinstance(policy, RetryPolicy)
    assert as_policy(policy) is policy


def test_fixed_and_none() -> None:
    assert FixedDelay(timedelta(minutes=2)).delay(99, ERROR) == 120
    assert NoRetry().delay(1, ERROR) is None


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ({"base": -1}, "base: -1"),
        ({"base": float("nan")}, "base: nan"),
        ({"cap": float("inf")}, "cap: inf"),
        ({"base": 7200}, "raise the cap"),
        ({"factor": 0.5}, "factor: 0.5"),
        ({"factor": float("nan")}, "factor: nan"),
        ({"jitter": "half"}, "jitter: 'half'"),
        ({"fatal": ValueError}, "fatal: <class 'ValueError'> must be a tuple"),
        ({"only": ("ValueError",)}, "only: 'ValueError' is not an exception type"),
    ],
)
def test_senseless_settings_are_refused_by_name(setting: dict[str, Any], word: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"ExponentialBackoff.*{word}"):
        ExponentialBackoff(**setting)


@pytest.mark.parametrize(("answer", "expected"), [(3, 3.0), (timedelta(minutes=1), 60.0), (None, None), (0, 0.0)])
def test_a_plain_function_is_a_policy(answer: Any, expected: float | None) -> None:
    asked: list[tuple[int, BaseException]] = []

    def policy(failures: int, error: BaseException) -> Any:
        asked.append((failures, error))
        return answer

    assert as_policy(policy).delay(4, ERROR) == expected
    assert asked == [(4, ERROR)]


@pytest.mark.parametrize("answer", [-1, float("nan"), "soon", 10**12, True])
def test_what_a_function_answers_is_checked(answer: Any) -> None:
    def hasty(failures: int, error: BaseException) -> Any:
        return answer

    with pytest.raises(ValueError, match=r"retry function .*hasty after 2 failures"):
        as_policy(hasty).delay(2, ERROR)


async def hopeful(failures: int, error: BaseException) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("thing", "word"),
    [
        (None, "None is no"),
        (5, "5 is no"),
        (ExponentialBackoff, r"ExponentialBackoff\(\)"),
        (hopeful, "async"),
    ],
)
def test_anything_else_is_no_policy(thing: Any, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        as_policy(thing)


@given(st.integers(0, int(MAX_SECONDS)) | st.floats(0, MAX_SECONDS))
def test_every_sensible_length_of_time_is_kept(value: float) -> None:
    assert seconds(value, what="x") == value


@given(st.floats(max_value=0, exclude_max=True) | st.floats(min_value=MAX_SECONDS, exclude_min=True))
def test_every_other_number_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"^x: "):
        seconds(value, what="x")
