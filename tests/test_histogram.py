"""Laws of the histograms: everything is counted once, and a percentile lies in the class where it belongs."""

from hypothesis import given
from hypothesis import strategies as st

from leasehold._histogram import BOUNDS, CLASSES, count, percentile

durations = st.lists(st.floats(min_value=0, max_value=1e6, allow_nan=False), max_size=200)


@given(durations)
def test_everything_is_counted_once_in_the_class_it_belongs_to(values: list[float]) -> None:
    counts = count(values)
    assert len(counts) == CLASSES
    assert sum(counts) == len(values)
    for place, bound in enumerate(BOUNDS):
        assert sum(counts[: place + 1]) == sum(value <= bound for value in values)


@given(durations.filter(bool), st.sampled_from([0.0, 0.5, 0.95, 0.99, 1.0]))
def test_a_percentile_is_as_exact_as_the_classes_are(values: list[float], fraction: float) -> None:
    ordered = sorted(values)
    exact = ordered[min(len(ordered) - 1, max(0, -(-int(fraction * 1000) * len(ordered) // 1000) - 1))]
    found = percentile(count(values), fraction)
    assert found is not None
    place = next((n for n, bound in enumerate(BOUNDS) if exact <= bound), len(BOUNDS))
    low = BOUNDS[place - 1] if place else 0.0
    high = BOUNDS[min(place, len(BOUNDS) - 1)]
    assert min(low, BOUNDS[-1]) <= found <= high


def test_of_nothing_there_is_no_percentile() -> None:
    assert percentile([0] * CLASSES, 0.5) is None


def test_percentiles_rise() -> None:
    counts = count([0.001 * n for n in range(1, 1000)])
    assert [round(percentile(counts, fraction) or 0, 2) for fraction in (0.5, 0.95, 0.99)] == [0.5, 0.95, 0.99]
