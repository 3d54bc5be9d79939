"""Brings docs/performance.md and its picture up to date with the figures of a run."""

from pathlib import Path
from typing import Any

from bench import picture
from bench.lines import Line

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "performance.md"
PICTURE = DOCS / "performance.svg"
BEGIN = "<!-- figures: written by python -m bench --publish -->"
END = "<!-- end of figures -->"


def headline(machine: dict[str, Any]) -> str:
    """Where the figures come from, in one line."""
    settings = machine["settings"]
    foreign = machine.get("foreign_cores")
    noise = f"; other programs took {foreign['median']:.2f} cores (at most {foreign['most']:.2f})" if foreign else ""
    size = "" if machine["size"] == "full" else " SMALL SIZES, only good to see that the suite works;"
    return (
        f"PostgreSQL {settings['server_version']}, fsync {settings['fsync']}, synchronous_commit"
        f" {settings['synchronous_commit']}, shared_buffers {settings['shared_buffers']}; Python {machine['python']},"
        f" {machine['cores']} cores;{size} medians of {machine['repeats']}; {machine['at']},"
        f" {machine['minutes']} minutes{noise}"
    )


def table(lines: list[Line]) -> str:
    """The lines in Markdown. A cell is never empty of meaning: a line without a target has no verdict."""
    rows = ["| what | against | reach | measured | spread | |", "| --- | --- | --- | ---: | --- | --- |"]
    for line in lines:
        verdict = "" if line.verdict == "shown" else line.verdict
        note = f"{verdict} ({line.note})" if verdict and line.note else verdict or line.note
        rows.append(f"| {line.what} | {line.against} | {line.target} | {line.measured} | {line.spread} | {note} |")
    return "\n".join(rows)


def publish(found: dict[str, Any]) -> None:
    """Rewrite what is between the marks, and draw."""
    lines = [
        Line(**{name: tuple(value) if name == "values" else value for name, value in one.items() if name != "median"})
        for one in found["lines"]
    ]
    page = PAGE.read_text()
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{PAGE.name} has no marks {BEGIN!r} and {END!r}")
    PAGE.write_text(f"{before}{BEGIN}\n{headline(found['machine'])}\n\n{table(lines)}\n{END}{after}")
    PICTURE.write_text(picture.draw(found))
