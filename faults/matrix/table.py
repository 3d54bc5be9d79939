"""The results of a matrix: one for each cell, and a line that counts them."""

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from faults.run import Run

T = TypeVar("T")


CROSS: Final = " × "
"""Between the row and the column in the name of a cell."""

PASSED: Final = ""
"""A cell's result is the reason why it failed; none: it passed."""


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """The cell makes no sense; the reason says why."""

    reason: str


Result = str | NotApplicable
Found = Mapping[tuple[str, str], Result]
"""Results by row and column."""


@dataclass(kw_only=True)
class Table:
    """What is known of each cell."""

    rows: int
    columns: int
    results: dict[tuple[str, str], Result] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def add(self, found: Found, folder: Path | None = None) -> None:
        """Take results in; a cell that failed once stays failed. What failed is noted at once in the run's folder."""
        with self._guard:
            self._add(found, folder)

    def _add(self, found: Found, folder: Path | None) -> None:
        if folder is not None:
            with (folder / "cells.txt").open("a") as file:
                file.writelines(f"{row}{CROSS}{column}: {why or 'passed'}\n" for (row, column), why in found.items())
        for cell, result in found.items():
            if self.results.get(cell) in (None, PASSED) or isinstance(self.results[cell], NotApplicable):
                self.results[cell] = result

    @property
    def failed(self) -> dict[tuple[str, str], str]:
        """The reasons by cell."""
        return {cell: why for cell, why in self.results.items() if isinstance(why, str) and why != PASSED}

    def __str__(self) -> str:
        skipped = sum(isinstance(result, NotApplicable) for result in self.results.values())
        passed = len(self.results) - skipped - len(self.failed)
        return (
            f"rows {self.rows}, columns {self.columns}, cells {len(self.results)}, passed {passed},"
            f" failed {len(self.failed)}, not applicable {skipped}; {time.monotonic() - self.began:.0f} s"
        )

    def close(self, run: Run) -> None:
        """Hand the counts and the failed cells to the run. A matrix in which nothing was tried has failed too."""
        run.facts["matrix"] = str(self)
        run.problems += [f"{row}{CROSS}{column}: {why}" for (row, column), why in sorted(self.failed.items())]
        run.check(PASSED in self.results.values(), "not one cell passed: the matrix shows nothing")


def diagonal(rows: Sequence[str], columns: Sequence[str]) -> list[tuple[str, str]]:
    """The smallest fixed sample in which every row and every column occurs."""
    return [(rows[n % len(rows)], columns[n % len(columns)]) for n in range(max(len(rows), len(columns)))]


def chosen(items: Sequence[T]) -> list[T]:
    """Those that FAULTS_CELLS, a regular expression, finds; all without it. To repeat what failed."""
    pattern = os.environ.get("FAULTS_CELLS", "")
    found = [item for item in items if re.search(pattern, item if isinstance(item, str) else CROSS.join(item))]  # type: ignore[arg-type]
    if not found:
        raise ValueError(f"FAULTS_CELLS={pattern!r} finds no cell")
    return found


def groups(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """So many at once, in their order."""
    return (items[start : start + size] for start in range(0, len(items), size))


def together(packs: Iterable[Sequence[str]], probe: Callable[[Sequence[str]], Found]) -> Iterator[Found]:
    """Probe several rows at once; where a cell of a group fails, each of its rows alone, to learn which it was.

    Rows that cannot be probed beside the others of their group give nothing there, and are probed after them. A failure
    that no row shows alone is the group's own and stays: its cells keep the reason of the group.
    """
    for group in packs:
        found = probe(group)
        if len(group) == 1:
            yield found
            continue
        probed = {row for row, _ in found}
        if not _any_failed(found):
            yield found
            left = [row for row in group if row not in probed]
            yield from together([left] if 0 < len(left) < len(group) else [[row] for row in left], probe)
            continue
        alone = []
        for row in group:
            alone.append(probe([row]))
            yield alone[-1]
        if not any(map(_any_failed, alone)):
            yield _of_the_group(found)


def halving(
    cells: Sequence[tuple[str, str]], size: int, probe: Callable[[Sequence[tuple[str, str]]], Found]
) -> Iterator[Found]:
    """Probe many cells at once; where some fail, halves of them, until those that fail alone are known."""
    for group in groups(cells, size):
        found = probe(group)
        if len(group) == 1 or not _any_failed(found):
            yield found
            continue
        parts = []
        for part in halving(group, (len(group) + 1) // 2, probe):
            parts.append(part)
            yield part
        if not any(map(_any_failed, parts)):
            yield _of_the_group(found)


def _of_the_group(found: Found) -> Found:
    return {cell: f"only together with others: {why}" for cell, why in found.items() if _fails(why)}


def _fails(result: Result) -> bool:
    return isinstance(result, str) and result != PASSED


def _any_failed(found: Found) -> bool:
    return any(map(_fails, found.values()))
