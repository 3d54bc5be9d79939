"""Whatever jobs are called and carry, it is text; and what other sites send is refused by a real browser's server."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.web.conftest import Opened
from tests.web.corpus import HOSTILE
from tests.web.serving import Site
from tests.web.world import WORKER, World

FIVES = [HOSTILE[begin : begin + 5] for begin in range(0, len(HOSTILE), 5)]


@pytest.fixture(scope="module")
def hostile(world: World) -> World:
    """Jobs of five texts each: in kind, queue, tags, key, payload, errors, logs, reasons, workers, schedules."""
    for number, texts in enumerate(FIVES):
        kind, queue, error, message, key = texts
        queue = f"{queue[:180]}{number}"
        payload = {text: [text] for text in texts}
        keys = {"exclusive_key": f"{key}{number}", "idempotency_key": f"{message}{number}"}
        job = world.enqueue(kind[:190], payload, queue=queue, tags=list(texts), **keys)
        world.claim(queue)
        lines = json.dumps([[1.5, text, text] for text in texts])
        world.sql.execute("select add_logs(%s, array[%s], array[1], null, array[%s::jsonb])", [WORKER, job, lines])
        failure = {"class": error, "message": message, "traceback": "\n".join(texts)}
        world.fail({"id": job, "attempt": 1}, failure, fatal=number % 2 == 0)
        world.jobs[f"hostile {number}"] = job
        world.sql.execute("select pause(%s, %s, %s)", [queue, kind, error])
        world.sql.execute("select set_limit('queue', %s, 0)", [queue])
        world.sql.execute("select schedule_put(%s, %s, cron => '0 3 * * *', queue => %s)", [queue, kind[:190], queue])
        world.sql.execute("select start_worker(%s, %s, 1, array[%s])", [f"{key}{number}", message, queue])
    return world


def test_no_text_runs_as_a_script_on_any_screen(site: Site, hostile: World, opened: Opened) -> None:
    assert len(HOSTILE) >= 200
    page = opened(site.page())
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    screens = ["/", "/queues", "/jobs", "/jobs?state=dead", "/jobs?state=retry", "/errors", "/workers", "/schedules"]
    for path in screens:
        page.goto(site.page(path))
        page.wait_for_selector("html[data-ready]")
        page.wait_for_selector('#live[data-state="live"]')
        assert page.evaluate("window.__xss") is None, path
    assert page.locator("main script, main iframe, main object, main img, main marquee").count() == 0
    assert dialogs == []


def test_no_text_runs_as_a_script_where_a_job_is_shown_whole(site: Site, hostile: World, opened: Opened) -> None:
    page = opened(site.page(f"/jobs/{hostile.jobs['hostile 0']}"))
    expect(page.locator("h1")).to_contain_text(FIVES[0][0])
    # Every page as the server makes it, taken apart as the browser does when it puts fresh sections in place.
    put = """async (urls) => {
      for (const url of urls) {
        const text = await (await fetch(url)).text();
        const fresh = new DOMParser().parseFromString(text, "text/html");
        if (!fresh.getElementById("why")) throw new Error(url);
        const main = document.importNode(fresh.getElementById("main"), true);
        document.getElementById("main").replaceChildren(...main.children);
      }
    }"""
    page.evaluate(put, [site.page(f"/jobs/{hostile.jobs[f'hostile {number}']}") for number in range(len(FIVES))])
    assert page.evaluate("window.__xss") is None
    assert page.locator("main script, main iframe, main object, main img, main marquee").count() == 0


def test_no_text_in_the_url_runs_as_a_script(site: Site, world: World, opened: Opened) -> None:
    page = opened(site.page(), live=False)
    names = ("kind", "queue", "tag", "error", "key", "after", "state", "cursor", "trail")
    for text in HOSTILE[:3] + HOSTILE[-15:-8]:
        address = page.evaluate("(fields) => new URLSearchParams(fields).toString()", [[name, text] for name in names])
        page.goto(site.page(f"/jobs?{address}"), wait_until="domcontentloaded")
        assert page.evaluate("window.__xss") is None


@contextmanager
def another_site(folder: Path, target: str) -> Iterator[str]:
    """Another site, on a real port, whose page tries what it can."""
    (folder / "index.html").write_text(f"""<!doctype html><body>
<form id="form" method="post" enctype="text/plain" target="frame" action="{target}/dashboard/queues/pause">
<input name='{{"queue": "mail", "reason": "' value='"}}'></form><iframe name="frame"></iframe>
<script>
window.outcomes = (async () => {{
  document.getElementById("form").submit();
  const outcomes = [];
  for (const mode of ["no-cors", "cors"]) for (const type of ["text/plain", "application/json"]) {{
    try {{
      const answer = await fetch("{target}/dashboard/queues/pause", {{method: "POST", mode, credentials: "include",
        headers: {{"content-type": type, "x-leasehold-csrf": "guess"}}, body: JSON.stringify({{queue: "mail"}})}});
      outcomes.push(answer.type === "opaque" ? "opaque" : answer.status);
    }} catch (error) {{ outcomes.push("blocked"); }}
  }}
  try {{
    await (await fetch("{target}/dashboard/", {{credentials: "include"}})).text();
    outcomes.push("read");
  }} catch (error) {{ outcomes.push("unreadable"); }}
  return outcomes;
}})();
</script>""")
    handler = partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://localhost:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def test_another_sites_page_changes_and_reads_nothing(site: Site, world: World, tmp_path: Path, opened: Opened) -> None:
    victim = opened(site.page())
    with another_site(tmp_path, site.url) as other:
        page = victim.context.new_page()
        page.goto(other)
        outcomes = page.evaluate("window.outcomes")
        assert set(outcomes) <= {"opaque", "blocked", "unreadable"}
        assert "read" not in outcomes
        page.wait_for_load_state("networkidle")
        page.close()
    assert world.sql.execute("select from queues where queue = 'mail'").fetchone() is None
    for text in ("frame-ancestors 'none'", "form-action 'self'"):
        assert text in (victim.request.get(site.page()).headers["content-security-policy"])
