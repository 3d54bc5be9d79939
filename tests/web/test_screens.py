"""Each screen shows what there is to know: in light and dark, wide and narrow, with and without sight."""

import os
import re
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.http.conftest import connect
from tests.web.conftest import Opened, ready
from tests.web.serving import Site, serving
from tests.web.world import World

FULL = os.environ.get("LEASEHOLD_SURVIVAL") == "full"
SCREENS = ("/", "/queues", "/jobs", "/errors", "/workers", "/schedules", "/system", "JOB", "RUNNING")


def path_of(world: World, screen: str) -> str:
    return {"JOB": f"/jobs/{world.jobs['dead']}", "RUNNING": f"/jobs/{world.jobs['running']}"}.get(screen, screen)


def test_the_root_leads_browsers_to_the_dashboard(site: Site, world: World, opened: Opened) -> None:
    page = opened(site.url)
    assert page.url == site.page()


def test_the_overview_shows_what_needs_attention_and_where_it_is(site: Site, world: World, opened: Opened) -> None:
    page = opened(site.page())
    items = page.locator(".attention a")
    expect(items.filter(has_text="3 jobs died in the last hour")).to_have_attribute(
        "href", "/dashboard/jobs?state=dead"
    )
    expect(items.filter(has_text="letters is paused")).to_contain_text("1 jobs wait · by ada “no paper”")
    expect(page.locator("#invariants")).to_contain_text("lost jobs 0")
    expect(page.locator("#invariants")).to_contain_text("double owners 0")
    expect(page.locator("#counts")).to_contain_text("dead")
    expect(page.locator("#queues tr", has_text="letters")).to_contain_text("paused")
    expect(page.locator("#errors")).to_contain_text("shop.ConnectionResetError in BILL")
    expect(page.locator("#fires")).to_contain_text("nightly")


def test_a_job_that_waits_says_why_and_the_blocker_is_linked(site: Site, world: World, opened: Opened) -> None:
    holder = world.enqueue("TRANSFER", queue="keys", exclusive_key="account-9")
    assert world.claim("keys")["id"] == holder
    world.sql.execute(
        "update jobs set lease_expires_at = clock_timestamp() + interval '1 hour' where id = %s", [holder]
    )
    behind = world.enqueue("TRANSFER", queue="keys", exclusive_key="account-9")
    page = opened(site.page(f"/jobs/{behind}"))
    expect(page.locator("#why")).to_contain_text("Another job has its exclusive key")
    page.get_by_role("link", name="the job in its way").click()
    page.wait_for_url(re.compile(str(holder)))
    expect(page.locator("#why")).to_contain_text("Running on")


def test_a_dead_job_shows_its_attempts_traceback_payload_and_commands(site: Site, world: World, opened: Opened) -> None:
    page = opened(site.page(f"/jobs/{world.jobs['dead']}"))
    expect(page.locator("#why")).to_contain_text("Gave up")
    expect(page.get_by_role("img", name=re.compile("attempt 1 failed after"))).to_be_visible()
    expect(page.locator("pre", has_text="Traceback")).to_contain_text("shop.py")
    command = page.get_by_role("button", name="Copy: Submit again with curl").get_attribute("data-copy") or ""
    assert '"jobType": "BILL"' in command
    assert f"{site.url}/jobs" in command


def test_fields_named_in_the_settings_are_hidden_and_numbers_are_as_they_were_written(
    site: Site, world: World, opened: Opened
) -> None:
    page = opened(site.page(f"/jobs/{world.jobs['waiting']}"))
    shown = page.locator("pre.json").first
    expect(shown).to_contain_text('"password": "•••"')
    expect(shown).to_contain_text('"iban": "•••"')
    expect(shown).to_contain_text('"amount": 12.5')
    assert "hunter2" not in page.content()


def test_the_lease_map_counts_down_and_an_expired_lease_says_so(site: Site, world: World, opened: Opened) -> None:
    job = world.enqueue("SLOW", queue="mail2")
    assert world.claim("mail2")["id"] == job
    world.sql.execute(
        "update jobs set lease_expires_at = clock_timestamp() + interval '4 seconds' where id = %s", [job]
    )
    page = opened(site.page("/workers"))
    cell = page.locator(f'.cell[data-key="{job}"]')
    expect(cell).to_contain_text("SLOW")
    expect(cell).to_contain_text("expired")
    expect(cell).to_have_attribute("data-expired", "")
    world.sql.execute("select cancel(%s)", [job])
    expect(cell).to_have_count(0)


def test_schedules_show_their_next_five_runs_in_local_time_or_utc(site: Site, world: World, opened: Opened) -> None:
    page = opened(site.page("/schedules"), timezone_id="Asia/Tokyo")
    runs = page.locator("tr", has_text="nightly").locator(".fires li")
    expect(runs).to_have_count(5)
    expect(runs.first).to_contain_text("12:00:00")
    page.locator("#zone").click()
    expect(runs.first).to_contain_text("03:00:00 UTC")
    page.reload()
    ready(page)
    expect(runs.first).to_contain_text("03:00:00 UTC")


def test_the_session_that_holds_vacuum_back_is_named(site: Site, world: World, opened: Opened) -> None:
    from tests.http.conftest import connect  # noqa: PLC0415

    with connect(site.dsn) as other:
        other.execute("set application_name = 'forgotten-report'")
        other.execute("begin isolation level repeatable read")
        other.execute("select count(*) from pg_class")
        page = opened(site.page("/system"))
        expect(page.locator("#horizon")).to_contain_text("forgotten-report")
        expect(page.locator("#tables")).to_contain_text("jobs")
        expect(page.locator("#invariants")).to_contain_text("lost jobs")
        other.execute("rollback")


def test_a_page_changes_without_being_loaded_again(site: Site, world: World, opened: Opened) -> None:
    job = world.enqueue("LATE", queue="live", run_after="1 hour")
    page = opened(site.page(f"/jobs/{job}"))
    page.evaluate("window.__same = true")
    summary = page.locator("#head")
    expect(summary).to_contain_text("created")
    world.sql.execute("select run_now(%s)", [job])
    expect(summary).to_contain_text("queued")
    claimed = world.claim("live")
    world.sql.execute(
        "select heartbeat('vm:4711:ab12', array[%s], array[%s], null, '{0.25}', '{a quarter}')",
        [job, claimed["attempt"]],
    )
    expect(page.locator("#why")).to_contain_text("a quarter")
    world.sql.execute("select cancel(%s)", [job])
    expect(summary).to_contain_text("cancelled")
    assert page.evaluate("window.__same") is True
    expect(page.locator("#news")).to_have_text("LATE is cancelled")


def test_a_page_without_event_streams_polls_until_it_has_one(site: Site, world: World, opened: Opened) -> None:
    job = world.enqueue("POLLED", queue="polled", run_after="1 hour")
    page = opened(site.page(), live=False)
    page.route("**/dashboard/live", lambda route: route.fulfill(status=204))
    page.goto(site.page(f"/jobs/{job}"))
    expect(page.locator("#live")).to_have_text("polling")
    world.sql.execute("select cancel(%s)", [job])
    expect(page.locator("#head")).to_contain_text("cancelled")
    page.unroute("**/dashboard/live")
    expect(page.locator("#live")).to_have_text("live")


def test_filters_are_in_the_url_and_survive_reload_and_back(site: Site, world: World, opened: Opened) -> None:
    world.dead("FILTERED", 2, queue="filters", tags=["find-me"])
    page = opened(site.page("/jobs"))
    page.get_by_label("Tag", exact=True).fill("find-me")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url(re.compile("tag=find-me"))
    rows = page.locator("table.jobs tbody tr")
    expect(rows).to_have_count(2)
    page.locator("#tabs a", has_text="dead").click()
    page.wait_for_url(re.compile("state=dead"))
    expect(rows).to_have_count(2)
    page.reload()
    expect(rows).to_have_count(2)
    expect(page.get_by_label("Tag", exact=True)).to_have_value("find-me")
    rows.first.locator("a.row").click()
    page.wait_for_url(re.compile("/jobs/[0-9a-f-]{36}"))
    page.go_back()
    expect(page.get_by_label("Tag", exact=True)).to_have_value("find-me")
    expect(rows).to_have_count(2)


def test_pages_go_forward_and_back(site: Site, world: World, opened: Opened) -> None:
    world.sql.execute("select enqueue('MANY', queue => 'many', run_after => '1 day') from generate_series(1, 120)")
    page = opened(site.page("/jobs?kind=MANY"))
    links = page.locator("table.jobs a.row")
    seen: list[set[Any]] = []
    for number in range(3):
        expect(links).to_have_count(50 if number < 2 else 20)
        seen.append({link.get_attribute("href") for link in links.all()})
        if number < 2:
            page.get_by_role("link", name="Next").click()
            expect(page.locator(f'table.jobs a.row[href="{next(iter(seen[-1]))}"]')).to_have_count(0)
    assert len(set.union(*seen)) == 120
    for number in (1, 0):
        page.get_by_role("link", name="Back").click()
        expect(page.locator(f'table.jobs a.row[href="{next(iter(seen[number]))}"]')).to_have_count(1)


def test_the_search_box_finds_a_job_by_its_id_and_others_by_field(site: Site, world: World, opened: Opened) -> None:
    page = opened(site.page())
    page.keyboard.press("/")
    page.keyboard.type(str(world.jobs["queued"]))
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(str(world.jobs["queued"])))
    page.locator("#q").fill("queue:graves error:shop.ConnectionResetError state:dead")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("queue=graves&error=shop.ConnectionResetError&state=dead"))
    expect(page.locator("table.jobs tbody tr")).not_to_have_count(0)


def test_everything_can_be_reached_by_keyboard(site: Site, world: World, opened: Opened) -> None:
    page = opened(site.page("/"))
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the content")
    page.keyboard.press("Enter")
    expect(page.locator(":focus")).to_have_id("main")
    for letter, path in {
        "q": "/queues",
        "e": "/errors",
        "w": "/workers",
        "s": "/schedules",
        "y": "/system",
        "o": "/",
        "j": "/jobs",
    }.items():
        page.keyboard.press("g")
        page.keyboard.press(letter)
        page.wait_for_url(site.page(path))
        page.wait_for_selector("html[data-ready]")
    page.keyboard.press("?")
    expect(page.locator("dialog#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog#keys")).to_be_hidden()
    page.keyboard.press("j")
    page.keyboard.press("j")
    second = page.locator("table.jobs tbody tr").nth(1)
    expect(second.locator("a.row")).to_be_focused()
    page.keyboard.press("x")
    expect(page.locator("#chosen")).to_have_text("1 selected")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/jobs/[0-9a-f-]{36}"))


def test_focus_and_selection_survive_a_live_change(site: Site, world: World, opened: Opened) -> None:
    jobs = [world.enqueue("STEADY", queue="steady", run_after="1 hour") for _ in range(3)]
    page = opened(site.page("/jobs?kind=STEADY"))
    row = page.locator(f'tr[data-key="{jobs[0]}"]')
    row.locator("input").check()
    row.locator("a.row").focus()
    world.enqueue("STEADY", queue="steady", run_after="1 hour")
    world.sql.execute("select cancel(%s)", [jobs[2]])
    expect(page.locator("table.jobs tbody tr")).to_have_count(4)
    expect(row.locator("a.row")).to_be_focused()
    expect(row.locator("input")).to_be_checked()
    expect(page.locator("#chosen")).to_have_text("1 selected")


def test_entries_with_one_title_are_all_kept_by_a_live_change(opened: Opened, admin: Any, migrated: str) -> None:
    with admin.database(template=migrated) as name, connect(admin.server.dsn(name)) as sql:
        for number in range(3):
            sql.execute("select start_worker(%s, 'build-7', %s)", [f"w{number}", 4711 + number])
        sql.execute("update workers set seen_at = clock_timestamp() - interval '10 minutes'")
        with serving(admin.server.dsn(name)) as site:
            page = opened(site.page())
            silent = page.locator("#attention li", has_text="A worker is silent")
            expect(silent).to_have_count(3)
            sql.execute("select enqueue('K', queue => 'new')")
            expect(page.locator("#queues")).to_contain_text("new")
            expect(silent).to_have_count(3)
            assert len({row.get_attribute("data-key") for row in silent.all()}) == 3


def test_equal_keys_are_paired_in_their_order(site: Site, opened: Opened) -> None:
    page = opened(site.page())
    found = page.evaluate(
        """async () => {
          const source = document.querySelector('script[type=module][src*="main"]').src;
          const names = performance.getEntriesByType("resource").map((entry) => entry.name);
          const place = names.find((name) => name.includes("morph")) || source.replace("main", "morph");
          const { morph } = await import(place);
          const list = (...texts) => {
            const made = document.createElement("ul");
            for (const text of texts) {
              const item = document.createElement("li");
              item.dataset.key = "same";
              item.textContent = text;
              made.append(item);
            }
            return made;
          };
          const shown = [];
          const from = list("a", "b", "c");
          const first = from.firstChild;
          for (const to of [list("d", "e", "f"), list("g"), list("h", "i", "j", "k")]) {
            morph(from, to);
            shown.push([...from.children].map((item) => item.textContent).join(""));
          }
          return [...shown, first === from.firstChild];
        }"""
    )
    assert found == ["def", "g", "hijk", True]


def test_a_theme_is_kept(site: Site, world: World, opened: Opened) -> None:
    page = opened(site.page())
    page.locator("#theme").click()
    page.locator("#theme").click()
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(15, 17, 19)"


# Contrast is a matter of the theme, layout of the width: two of the four see all of both.
@pytest.mark.parametrize(
    ("theme", "width"), [("light", 1440), ("dark", 390), *([("light", 390), ("dark", 1440)] if FULL else [])]
)
def test_axe_finds_nothing_serious(site: Site, world: World, opened: Opened, theme: Any, width: int) -> None:
    page: Page = opened(site.page(), color_scheme=theme, viewport={"width": width, "height": 900})
    found = []
    for screen in SCREENS:
        page.goto(site.page(path_of(world, screen)))
        ready(page)
        result = Axe().run(page, options={"resultTypes": ["violations"]}).response
        found += [
            (screen, one["id"], one["nodes"][0]["html"][:200], one["nodes"][0].get("failureSummary"))
            for one in result["violations"]
            if one["impact"] in {"serious", "critical"}
        ]
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{screen} is wider than {width} px"
    assert found == []
