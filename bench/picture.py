"""A small writer of bar charts in SVG, legible in light and dark."""

import statistics
from collections.abc import Mapping
from html import escape
from typing import Any

WIDTH, LEFT, BAR, GAP = 760, 190, 20, 7

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .title { font-weight: 600; font-size: 14px }
  .ours { fill: #0969da } .theirs { fill: #8c959f } .limit { fill: #1a7f37 }
  .spread { stroke: #1f2328; stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .ours { fill: #4493f8 } .theirs { fill: #6e7681 } .limit { fill: #3fb950 }
    .spread { stroke: #e6edf3 }
  }
"""

CHARTS = (
    ("drain", "rate", "Drain: jobs per second, by number of worker processes"),
    ("bulk", "rate", "Bulk enqueue: jobs per second, 1,000 a call"),
    ("single", "rate", "One-at-a-time enqueue: jobs per second"),
    ("latency", "p99", "Latency, idle worker: p99 in milliseconds (less is better)"),
)


def draw(found: Mapping[str, Any]) -> str:
    """The picture of a run: the charts that it has figures for."""
    parts: list[str] = []
    top = 10
    for case, figure, title in CHARTS:
        values: dict[str, list[float]] = {}
        for one in found["measurements"]:
            if one["case"] == case and figure in one:
                values.setdefault(one["who"], []).append(float(one[figure]))
        if values:
            chart, height = bars(title, values, top)
            parts.append(chart)
            top += height + 22
    if not parts:
        parts, top = ['<text x="10" y="25">No run has been published yet.</text>'], 40
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" role="img"'
        f' aria-label="Benchmarks of Leasehold and its peers">\n<style>{STYLE}</style>\n{body}\n</svg>\n'
    )


def bars(title: str, values: Mapping[str, list[float]], top: int) -> tuple[str, int]:
    """One chart: a bar for each median, a line from the least to the most; and its height."""
    most = max(max(some) for some in values.values()) or 1.0
    scale = (WIDTH - LEFT - 90) / most
    found = [f'<text class="title" x="10" y="{top + 15}">{escape(title)}</text>']
    y = top + 26
    for who, some in sorted(values.items(), key=lambda item: -statistics.median(item[1])):
        median, style = statistics.median(some), _style(who)
        end = LEFT + max(some) * scale
        label = f"{median:,.0f}" if median >= 100 else f"{median:.1f}"
        middle = y + BAR / 2
        found += [
            f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(who)}</text>',
            f'<rect class="{style}" x="{LEFT}" y="{y}" width="{median * scale:.1f}" height="{BAR}" rx="2"/>',
            f'<line class="spread" x1="{LEFT + min(some) * scale:.1f}" x2="{end:.1f}" y1="{middle}" y2="{middle}"/>',
            f'<text x="{end + 6:.1f}" y="{y + 15}">{label}</text>',
        ]
        y += BAR + GAP
    return "\n".join(found), y - top


def _style(who: str) -> str:
    if who.startswith("leasehold"):
        return "ours"
    return "limit" if who.startswith(("the limit", "raw")) else "theirs"
