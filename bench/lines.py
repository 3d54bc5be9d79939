"""The lines of the table: what was measured, what was to be reached, and whether it was."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["PASS", "below", "not run", "shown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One figure. `values` are those of the repeats, in order."""

    what: str
    against: str = ""
    target: str = ""
    unit: str = ""
    """%, x (times), /s, ms, µs, B, MB, or nothing for a plain number."""
    values: tuple[float, ...] = ()
    verdict: Verdict = "shown"
    note: str = ""

    @property
    def median(self) -> float | None:
        return statistics.median(self.values) if self.values else None

    @property
    def measured(self) -> str:
        return "-" if self.median is None else shown(self.median, self.unit)

    @property
    def spread(self) -> str:
        """From the least to the most."""
        if len(self.values) < 2:
            return ""
        return f"{shown(min(self.values), self.unit)} to {shown(max(self.values), self.unit)}"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "median": self.median}


def shown(value: float, unit: str) -> str:
    """A figure as people read it."""
    match unit:
        case "%":
            return f"{value * 100:.0f} %"
        case "x":
            return f"{value:.2f} x"
        case "/s":
            return f"{value:,.0f}/s"
        case "":
            return f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"
        case _:
            return f"{value:,.{0 if value >= 100 else 2 if value < 10 else 1}f} {unit}"


def at_least(bound: float, values: Sequence[float], unit: str, *, what: str, against: str = "", note: str = "") -> Line:
    """A line whose median must reach the bound."""
    met = bool(values) and statistics.median(values) >= bound
    return Line(
        what=what, against=against, target=f"≥ {shown(bound, unit)}", unit=unit, values=tuple(values),
        verdict="PASS" if met else "below", note=note,
    )  # fmt: skip


def at_most(bound: float, values: Sequence[float], unit: str, *, what: str, against: str = "", note: str = "") -> Line:
    """A line whose median must not exceed the bound."""
    met = bool(values) and statistics.median(values) <= bound
    return Line(
        what=what, against=against, target=f"≤ {shown(bound, unit)}", unit=unit, values=tuple(values),
        verdict="PASS" if met else "below", note=note,
    )  # fmt: skip


def seen(values: Sequence[float], unit: str, *, what: str, against: str = "", note: str = "") -> Line:
    """A line that is only shown."""
    return Line(what=what, against=against, unit=unit, values=tuple(values), note=note)


def not_run(why: str, *, what: str, against: str = "", target: str = "") -> Line:
    """A line that could not be measured. It is never a success."""
    return Line(what=what, against=against, target=target, verdict="not run", note=why)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Round by round, so that drift hits both sides alike."""
    return [a / b for a, b in zip(ours, theirs, strict=False) if b]


def printed(lines: Sequence[Line]) -> str:
    """The table for a terminal."""
    rows = [("what", "against", "target", "measured", "spread", "", "note")]
    rows += [
        (line.what, line.against, line.target, line.measured, line.spread,
         "" if line.verdict == "shown" else line.verdict, line.note)
        for line in lines
    ]  # fmt: skip
    widths = [max(len(row[n]) for row in rows) for n in range(6)]
    text = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row[:6], widths, strict=True)), row[6]]) for row in rows
    ]
    return "\n".join(line.rstrip() for line in text)
