"""Histograms of durations, as workers tally them and as the database keeps them."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

BOUNDS: Final = (
    0.001, 0.0016, 0.0025, 0.004, 0.0063, 0.01, 0.016, 0.025, 0.04, 0.063, 0.1, 0.16, 0.25, 0.4, 0.63,
    1.0, 1.6, 2.5, 4.0, 6.3, 10.0, 16.0, 25.0, 40.0, 63.0, 100.0, 160.0, 250.0, 400.0, 630.0,
    1000.0, 1600.0, 2500.0, 4000.0, 6300.0, 10000.0, 16000.0, 25000.0, 40000.0, 63000.0, 100000.0,
)  # fmt: skip
"""Where the classes end, in seconds, as histogram_bounds() in the database has it. One class more than bounds: the last
is for what took longer."""

CLASSES: Final = len(BOUNDS) + 1


def count(durations: Iterable[float]) -> list[int]:
    """Return how many of the durations fall into each class. Sorting them first is what makes thousands cheap."""
    ordered = sorted(durations)
    ends = [bisect_right(ordered, bound) for bound in BOUNDS]
    return [end - begin for begin, end in pairwise((0, *ends, len(ordered)))]


def percentile(counts: Sequence[int], fraction: float) -> float | None:
    """Return the duration that this fraction stayed under, in seconds, as exact as the classes are; None for none.

    Within a class durations are taken to lie evenly. What took longer than the last bound counts as that bound.
    """
    total = sum(counts)
    if total == 0:
        return None
    rank = fraction * total
    below = 0
    for place, number in enumerate(counts):
        if number and below + number >= rank:
            if place >= len(BOUNDS):
                break
            low = BOUNDS[place - 1] if place else 0.0
            return low + (BOUNDS[place] - low) * max(0.0, rank - below) / number
        below += number
    return BOUNDS[-1]
