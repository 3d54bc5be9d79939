"""Laws of the charts: a screen reader reads them, and what is drawn anew does not flicker."""

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from psycopg.types.json import Jsonb

from leasehold._histogram import CLASSES
from tests.http.conftest import connect
from tests.web.conftest import Opened
from tests.web.serving import Site, serving

KINDS = ("throughput", "wait", "run", "flow")


@pytest.fixture(scope="module")
def busy(home: str) -> None:
    """Ten minutes of work: 60 succeed and 6 fail in each, twice as many wait 40 ms as wait 4 s."""
    waits, runs = [0] * CLASSES, [0] * CLASSES
    waits[8], waits[18], runs[5] = 44, 22, 66
    row = {"queue": "q", "kind": "k", "success": 60, "failed": 6, "dead": 1, "waits": waits, "runs": runs}
    with connect(home) as sql:
        for number in range(1, 11):
            sql.execute("select statistics_add('w', %s, %s, %s)", [number, 60.0 * number + 30, Jsonb([row])])
            sql.execute(
                "insert into flow (at, created, queued, running, retry, dead, arrived) values"
                " (moment_of(clock(), 60) - %s * interval '1 minute', 5, 10, 4, 1, 2, 60) on conflict do nothing",
                [number],
            )


def chart(page: Page, kind: str) -> Any:
    found = page.locator(f'[data-chart="{kind}"]')
    expect(found.locator(".chart-plot")).to_be_visible()
    return found


def test_every_chart_is_drawn_and_says_its_latest_figures(site: Site, busy: None, opened: Opened) -> None:
    page = opened(site.page())
    for kind in KINDS:
        expect(chart(page, kind).locator("path").first).to_be_attached()
        expect(chart(page, kind).locator(".chart-legend li").first).to_contain_text(re.compile(r"\d"))
    expect(page.locator('[data-chart^="heatmap"] rect.chart-cell').first).to_be_attached()


def test_a_chart_is_read_by_keyboard_and_as_a_table(site: Site, busy: None, opened: Opened) -> None:
    page = opened(site.page())
    throughput = chart(page, "throughput")
    throughput.locator(".chart-plot").focus()
    tip = throughput.locator(".chart-tip")
    expect(tip).to_be_hidden()
    page.keyboard.press("End")
    expect(tip).to_contain_text("succeeded")
    latest = tip.inner_text()
    page.keyboard.press("ArrowLeft")
    assert tip.inner_text() != latest
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    throughput.locator("summary").click()
    expect(throughput.locator("thead")).to_contain_text("failed")
    rows = throughput.locator("tbody tr").all_inner_texts()
    assert len(rows) > 50
    assert any("2/s" in row for row in rows), "60 in half a minute"
    wait = chart(page, "wait")
    wait.locator("summary").click()
    expect(wait.locator("tbody")).to_contain_text(re.compile(r"\d ms.*\d s", re.DOTALL))


def test_what_is_drawn_anew_keeps_its_place_and_its_focus(site: Site, busy: None, opened: Opened) -> None:
    page = opened(site.page(), live=False)
    plot = chart(page, "throughput").locator(".chart-plot")
    plot.focus()
    page.keyboard.press("End")
    canvas = plot.locator("svg.chart-canvas").element_handle()
    page.evaluate("document.dispatchEvent(new Event('leasehold:refresh'))")
    page.set_viewport_size({"width": 500, "height": 800})
    width = "element => element.viewBox.baseVal.width < 500"
    page.wait_for_function(width, arg=canvas)
    assert canvas is not None
    assert canvas.evaluate("element => element.isConnected")
    expect(plot).to_be_focused()
    expect(plot.locator(".chart-tip")).to_be_visible()


def test_without_anything_to_show_it_says_so(token_home: str, opened: Opened) -> None:
    with serving(token_home) as empty:
        page = opened(empty.page())
        expect(page.locator('[data-chart="throughput"] .chart-empty')).to_have_text("No job has ended in this time.")
        expect(page.locator('[data-chart="flow"] .chart-empty')).to_contain_text(re.compile("first samples|no jobs"))
