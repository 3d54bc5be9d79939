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
LEADING_BEGIN = "<!-- leading figures: written by python -m bench --publish -->"
LEADING_END = "<!-- end of leading figures -->"

LEADING = (
    ("drain, one worker process", ""),
    ("drain, one worker process", "graphile-worker"),
    ("cost of a job in a drain", "WAL"),
    ("bulk enqueue, 1,000 a call", ""),
    ("one-at-a-time enqueue", ""),
    ("latency, idle worker, p50", ""),
    ("latency, idle worker, p99", ""),
    ("latency at half load", "p99"),
    ("growth: 10 M finished", "claim of 100 on an empty table"),
    ("POST /jobs, 64 connections", ""),
)
"""The figures with which the page begins: what, and against what."""


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


def leading(lines: list[Line]) -> str:
    """The figures with which the page begins, in Markdown."""
    found = {(line.what, line.against): line for line in lines}
    chosen = [found[key] for key in LEADING if key in found]
    rows = [f"| {line.what} | {line.against} | {line.measured} | {line.spread} |" for line in chosen]
    return "\n".join(["| what | against | measured | spread |", "| --- | --- | ---: | --- |", *rows])


def replaced(page: str, begin: str, end: str, text: str) -> str:
    """The page with this text between two marks."""
    before, found, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise SystemExit(f"{PAGE.name} has no marks {begin!r} and {end!r}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def publish(found: dict[str, Any]) -> None:
    """Rewrite what is between the marks, and draw."""
    lines = [
        Line(**{name: tuple(value) if name == "values" else value for name, value in one.items() if name != "median"})
        for one in found["lines"]
    ]
    page = replaced(PAGE.read_text(), LEADING_BEGIN, LEADING_END, leading(lines))
    PAGE.write_text(replaced(page, BEGIN, END, f"{headline(found['machine'])}\n\n{table(lines)}"))
    PICTURE.write_text(picture.draw(found))
