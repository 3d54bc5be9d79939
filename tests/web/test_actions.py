"""What people do on the pages happens, is confirmed where it cannot be undone, and is reported in words."""

import re
from typing import Any

from playwright.sync_api import Page, expect

from tests.http.conftest import connect
from tests.http.running import token_for
from tests.web.conftest import Opened, ready
from tests.web.serving import Site, serving
from tests.web.world import World, made


def told(page: Page, words: str) -> None:
    expect(page.locator("#toasts")).to_contain_text(words)


def test_a_dead_job_is_retried_and_a_waiting_one_runs_now(site: Site, world: World, opened: Opened) -> None:
    [job] = world.dead("RETRIED")
    page = opened(site.page(f"/jobs/{job}"))
    page.get_by_role("button", name="Retry").click()
    told(page, "1 job retried")
    expect(page.locator("#head")).to_contain_text("queued")
    assert world.state(job) == "queued"
    later = world.enqueue("LATER", queue="later", run_after="1 hour")
    page.goto(site.page(f"/jobs/{later}"))
    page.get_by_role("button", name="Run now").click()
    told(page, "1 job may run now")
    assert world.state(later) == "queued"


def test_cancelling_is_confirmed_and_can_be_left(site: Site, world: World, opened: Opened) -> None:
    job = world.enqueue("STOPPED", queue="stopped")
    page = opened(site.page(f"/jobs/{job}"))
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("button", name="Leave it").click()
    assert world.state(job) == "queued"
    page.get_by_role("button", name="Cancel…").press("Enter")
    expect(page.locator("#confirm")).to_be_visible()
    page.locator("#confirm-yes").press("Enter")
    told(page, "1 job cancelled")
    expect(page.locator("#why")).to_contain_text("by anonymous")
    assert world.state(job) == "cancelled"


def test_some_jobs_are_picked_and_changed_together(site: Site, world: World, opened: Opened) -> None:
    jobs = world.dead("PICKED", 3)
    page = opened(site.page("/jobs?state=dead&kind=PICKED"))
    for job in jobs[:2]:
        page.locator(f'[data-pick="{job}"]').check()
    expect(page.locator("#chosen")).to_have_text("2 selected")
    page.get_by_role("button", name="Retry", exact=True).click()
    told(page, "2 jobs retried")
    expect(page.locator("table.jobs tbody tr")).to_have_count(1)
    assert [world.state(job) for job in jobs] == ["queued", "queued", "dead"]
    page.goto(site.page("/jobs?state=queued&kind=PICKED"))
    page.locator("#pick-all").check()
    page.get_by_role("button", name="Cancel", exact=True).click()
    expect(page.locator("#confirm-text")).to_have_text("Stop these 2 jobs permanently?")
    page.locator("#confirm-yes").click()
    told(page, "2 jobs cancelled")


def test_all_that_match_are_counted_first_and_changed_after_the_number_was_typed(
    site: Site, world: World, opened: Opened
) -> None:
    world.sql.execute("select enqueue('FLOOD', queue => 'flood') from generate_series(1, 450)")
    others = world.enqueue("OTHER", queue="flood")
    page = opened(site.page("/jobs?state=queued&kind=FLOOD"))
    page.get_by_role("button", name="Cancel all matching…").click()
    expect(page.locator("#confirm-text")).to_contain_text("Stop all 450 matching jobs")
    expect(page.locator("#confirm-yes")).to_be_disabled()
    page.locator("#confirm-input").fill("45")
    expect(page.locator("#confirm-yes")).to_be_disabled()
    count = "select count(*) as n from jobs where kind = 'FLOOD' and state = 'queued'"
    assert world.sql.execute(count).fetchone() == {"n": 450}
    page.locator("#confirm-input").fill("450")
    page.locator("#confirm-yes").click()
    told(page, "450 jobs cancelled")
    assert world.sql.execute(count).fetchone() == {"n": 0}
    assert world.state(others) == "queued"


def test_retrying_all_that_match_ends_although_they_die_again(site: Site, world: World, opened: Opened) -> None:
    world.dead("DOOMED", 5, queue="doomed")
    page = opened(site.page("/jobs?state=dead&kind=DOOMED"))
    page.get_by_role("button", name="Retry all matching…").click()
    page.locator("#confirm-input").fill("5")
    page.locator("#confirm-yes").click()
    told(page, "5 jobs retried")
    row = world.sql.execute("select count(*) as n from jobs where kind = 'DOOMED' and state = 'queued'").fetchone()
    assert row == {"n": 5}


def test_a_queue_is_paused_with_a_reason_and_goes_on(site: Site, world: World, opened: Opened) -> None:
    world.enqueue("SEND", queue="post/<office>")
    page = opened(site.page("/queues"))
    row = page.locator("tr", has_text="post/<office>")
    row.get_by_role("button", name="Pause…").click()
    expect(page.get_by_label("Queue", exact=True)).to_have_value("post/<office>")
    page.get_by_label("Reason").fill("the roof leaks")
    page.keyboard.press("Enter")
    told(page, "post/<office> is paused")
    expect(row).to_contain_text("“the roof leaks”")
    found = world.sql.execute("select reason, paused_by from queues where queue = 'post/<office>'").fetchone()
    assert found == {"reason": "the roof leaks", "paused_by": "anonymous"}
    row.get_by_role("button", name="Resume").click()
    told(page, "post/<office> goes on")
    expect(row).not_to_contain_text("roof")


def test_limits_are_set_changed_and_cleared(site: Site, world: World, opened: Opened) -> None:
    page = opened(site.page("/queues"), refused=(422,))
    page.get_by_role("button", name="New limit…").click()
    dialog = page.locator("#limit")
    dialog.get_by_label("At most").fill("3")
    dialog.get_by_role("button", name="Set").click()
    expect(dialog.get_by_role("alert")).to_contain_text("which kind?")
    dialog.get_by_label("Name").fill("PRINT")
    dialog.get_by_role("button", name="Set").click()
    told(page, "at most 3 may run")
    row = page.locator("#limits tr", has_text="PRINT")
    expect(row).to_contain_text("3")
    row.get_by_role("button", name="Clear").click()
    expect(row).to_have_count(0)
    assert world.sql.execute("select from limits where name = 'PRINT'").fetchone() is None


def test_a_schedule_runs_now_and_is_switched_off_and_on(site: Site, world: World, opened: Opened) -> None:
    page = opened(site.page("/schedules"))
    row = page.locator("tr", has_text="nightly")
    row.get_by_role("button", name="Run now").click()
    told(page, "a job was enqueued")
    assert world.sql.execute("select count(*) as n from jobs where kind = 'REPORT'").fetchone() == {"n": 1}
    row.get_by_role("button", name="Disable").click()
    expect(row).to_contain_text("off")
    row.get_by_role("button", name="Enable").click()
    expect(row.locator(".fires li")).to_have_count(5)


def test_a_job_is_cloned_with_its_payload_edited_and_what_is_hidden_kept(
    site: Site, world: World, opened: Opened
) -> None:
    page = opened(site.page(f"/jobs/{world.jobs['waiting']}"), refused=(400,))
    page.get_by_role("button", name="Clone and edit…").click()
    area = page.locator("#clone textarea")
    text = area.input_value()
    assert "hunter2" not in text
    area.fill("{")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.locator("#clone [data-error]")).to_be_visible()
    area.fill(text.replace("17", "18"))
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url(lambda at: at.endswith(str(world.jobs["waiting"])) is False)
    expect(page.locator("h1")).to_contain_text("PAY")
    made = page.url.rsplit("/", 1)[-1]
    row = world.sql.execute("select payload, queue, exclusive_key from jobs where id = %s", [made]).fetchone()
    assert row == {
        "payload": {"invoice": 18, "password": "hunter2", "amount": 12.5, "to": {"iban": "DE00"}},
        "queue": "pay",
        "exclusive_key": "account-1",
    }


def test_jobs_are_found_and_cancelled_by_what_their_payload_contains(site: Site, world: World, opened: Opened) -> None:
    for city in ("Rome", "Oslo"):
        for number in range(2):
            world.jobs[f"{city} {number}"] = world.enqueue("SHIP", {"to": {"city": city}, "n": number}, queue="ships")
    page = opened(site.page("/jobs"))
    page.locator("#q").fill("kind:SHIP payload:to.city=Rome")
    page.keyboard.press("Enter")
    rows = page.locator("table.jobs tbody tr")
    expect(rows).to_have_count(2)
    assert "Rome" not in page.url
    assert "kind=SHIP" in page.url
    expect(page.get_by_label("Payload")).to_have_value("to.city=Rome")
    page.get_by_role("button", name="Cancel all matching…").click()
    page.locator("#confirm-input").fill("2")
    page.locator("#confirm-yes").click()
    told(page, "2 jobs cancelled")
    states = {name: world.state(world.jobs[name]) for name in ("Rome 0", "Rome 1", "Oslo 0", "Oslo 1")}
    assert states == {"Rome 0": "cancelled", "Rome 1": "cancelled", "Oslo 0": "queued", "Oslo 1": "queued"}
    page.goto(site.page("/jobs?kind=SHIP&payload=n%3D1"))
    expect(rows).to_have_count(2)
    page.goto(site.page("/jobs?payload=nonsense"))
    expect(page.get_by_role("alert")).to_contain_text("path=value")


def test_an_error_group_is_retried_as_a_canary_and_stopped(site: Site, world: World, opened: Opened) -> None:
    world.dead("CANARY", 12, queue="mine")
    page = opened(site.page("/errors"))
    page.locator('#groups tr[data-key^="CANARY "]').get_by_role("button", name="Canary retry…").click()
    page.locator("#confirm-yes").click()
    told(page, "ten jobs are tried first")
    canary = page.locator("#canaries li", has_text="CANARY")
    expect(canary).to_contain_text("running")
    canary.get_by_role("button", name="Stop").click()
    expect(canary).to_contain_text("stopped")


def test_a_token_is_asked_for_kept_out_of_reach_and_forgotten(token_home: str, opened: Opened) -> None:
    with connect(token_home) as sql, serving(token_home) as site:
        world = made(sql)
        token = token_for(token_home, "operate")
        page = opened(site.page("/queues"), live=False, refused=(401,))
        page.wait_for_url(site.page("/sign-in"))
        page.get_by_label("Token").fill("lh_wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("unknown, revoked or expired")
        page.get_by_label("Token").fill(token)
        page.keyboard.press("Enter")
        page.wait_for_url(site.page("/"))
        ready(page)
        [cookie] = [one for one in page.context.cookies() if one["name"] == "leasehold_session"]
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/dashboard")
        assert token not in cookie["value"]
        assert token not in page.content()
        assert token not in page.evaluate("document.cookie")
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url(site.page("/sign-in"))
        page.goto(site.page("/jobs"))
        page.wait_for_url(site.page("/sign-in"))
        token = token_for(token_home, "read")
        page.get_by_label("Token").fill(token)
        page.keyboard.press("Enter")
        page.wait_for_url(site.page("/"))
        for path in ("/queues", "/jobs", f"/jobs/{world.jobs['dead']}", "/errors", "/schedules"):
            page.goto(site.page(path))
            ready(page)
            assert page.locator("main [data-post], main [data-dialog], main [data-matching], [data-pick]").count() == 0
        assert "hunter2" not in page.content()
        page.goto(site.page(f"/jobs/{world.jobs['dead']}"))
        expect(page.locator("main")).to_contain_text("shown with the scope operate only")
        assert "Errno 104" not in page.content()
        page.close()


class Controls:
    """What a demo provides."""

    kills = 0

    def scoreboard(self) -> dict[str, Any]:
        return {"jobs lost": 0, "kills": self.kills}

    def kill(self) -> dict[str, Any]:
        self.kills += 1
        return {"worker": "vm:1:2", "pid": 1}


def test_a_demo_has_a_scoreboard_and_a_button_that_kills_a_worker(home: str, world: World, opened: Opened) -> None:
    with serving(home, demo=Controls()) as site:
        page = opened(site.page())
        expect(page.locator("#score dl")).to_have_text(re.compile("jobs lost\\s*0\\s*kills\\s*0"))
        page.get_by_role("button", name="Kill a worker").click()
        told(page, "killed worker vm:1:2, pid 1")
        expect(page.locator("#score dl")).to_have_text(re.compile("kills\\s*1"))
        page.close()


def test_a_revoked_token_leads_back_to_the_sign_in_page(token_home: str, opened: Opened) -> None:
    with serving(token_home) as site:
        token = token_for(token_home, "operate")
        page = opened(site.page("/sign-in"), live=False, refused=(401,))
        page.get_by_label("Token").fill(token)
        page.keyboard.press("Enter")
        page.wait_for_url(site.page("/"))
        ready(page)
        with connect(token_home) as sql:
            sql.execute("update tokens set revoked_at = clock_timestamp()")
        page.wait_for_url(re.compile("/sign-in"))
        page.close()
