"""Who gets in, and what is refused: to other sites, to other names, to those who may only look."""

import html
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from fastapi import FastAPI
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

import leasehold
from leasehold import App
from leasehold.cli.app import app as cli
from leasehold.errors import ConfigError
from leasehold.http.settings import ApiSettings
from leasehold.web.actions import ACTIONS
from tests.http.conftest import connect
from tests.http.running import token_for
from tests.web.serving import Site, serving
from tests.web.world import World, made

PATHS = ("/", "/queues", "/jobs", "/errors", "/workers", "/schedules", "/system")
CSRF = {"x-leasehold-csrf": "abc", "cookie": "leasehold_csrf=abc"}


@pytest.fixture
def http(site: Site) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{site.url}/dashboard", timeout=60) as client:
        yield client


def ours(site: Site) -> dict[str, str]:
    """The headers of a request that one of our own pages makes."""
    return {"origin": site.url, "sec-fetch-site": "same-origin", **CSRF}


def session_of(site: Site, token: str) -> str:
    """What a browser keeps that signed in with this token."""
    answer = httpx.post(f"{site.url}/dashboard/sign-in", json={"token": token}, headers=ours(site), timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.cookies["leasehold_session"]


def test_every_answer_carries_the_policy(http: httpx.Client, world: World) -> None:
    style = re.search(r'href="/dashboard(/static/[^"]*main.css)"', http.get("/").text)
    assert style is not None
    for path in ("/", "/jobs/nonsense", "/nowhere", style[1], "/data/statistics"):
        answer = http.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
    assert "immutable" in http.get(style[1]).headers["cache-control"]
    assert http.get("/static/x/../../pages.py").status_code == 404


def test_nothing_is_inline(http: httpx.Client, world: World) -> None:
    for path in (
        "/",
        "/queues",
        "/jobs",
        f"/jobs/{world.jobs['dead']}",
        "/errors",
        "/workers",
        "/schedules",
        "/system",
    ):
        text = http.get(path).text
        assert not re.search(r"<script(?![^>]*\bsrc=)", text)
        assert not re.search(r"<[^>]+\s(style|on\w+)=", text)


@pytest.mark.parametrize("time", ["999999d", "999999 d", "0001-01-01", "9999-12-31", "nonsense"])
def test_a_time_beyond_the_calendar_is_said_and_no_defect(http: httpx.Client, world: World, time: str) -> None:
    for name in ("after", "before"):
        answer = http.get("/jobs", params={name: time})
        assert answer.status_code == 200, answer.text
        if time[-1] in "ds":
            assert "calendar" in answer.text or "not a time" in answer.text


def test_an_unchanged_page_is_not_sent_twice(http: httpx.Client, world: World) -> None:
    path = f"/jobs/{world.jobs['success']}"
    first = http.get(path, headers=CSRF)
    again = http.get(path, headers={**CSRF, "if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["x-now"] > first.headers["x-now"]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "169.254.1.1", ""])
def test_a_name_that_was_made_to_lead_here_is_refused(http: httpx.Client, host: str) -> None:
    assert http.get("/", headers={"host": host}).status_code in {400, 403}


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:80", "demo.localhost"])
def test_this_machines_own_names_are_not(http: httpx.Client, host: str) -> None:
    assert http.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "change",
    [
        {"origin": "http://evil.example", "sec-fetch-site": "cross-site"},
        {"origin": "http://evil.example", "sec-fetch-site": "same-origin"},
        {"origin": "http://127.0.0.1:1", "sec-fetch-site": "same-site"},
        {"origin": "null", "sec-fetch-site": "none"},
        {"origin": None, "sec-fetch-site": None},
        {"x-leasehold-csrf": None},
        {"x-leasehold-csrf": "guess"},
        {"cookie": None},
        {"cookie": "leasehold_csrf=", "x-leasehold-csrf": ""},
    ],
)
def test_a_write_that_is_not_our_pages_own_is_refused(
    site: Site, http: httpx.Client, world: World, change: dict[str, str | None]
) -> None:
    headers = {name: value for name, value in {**ours(site), **change}.items() if value is not None}
    answer = http.post("/queues/pause", json={"queue": "mail"}, headers=headers)
    assert answer.status_code == 403, answer.text
    assert world.sql.execute("select from queues where queue = 'mail'").fetchone() is None


def test_our_pages_own_write_is_done(site: Site, http: httpx.Client, world: World) -> None:
    answer = http.post("/queues/pause", json={"queue": "mail"}, headers=ours(site))
    assert answer.status_code == 200, answer.text
    assert http.post("/queues/resume", json={"queue": "mail"}, headers=ours(site)).json()["message"] == "mail goes on"


def test_what_a_payload_must_contain_is_in_no_url(site: Site, world: World) -> None:
    world.enqueue("SEARCHED", {"to": {"iban": "DE4711"}})
    with httpx.Client(base_url=f"{site.url}/dashboard", timeout=60) as http:
        for fields in (
            {"q": "kind:SEARCHED payload:to.iban=DE4711"},
            {"kind": "SEARCHED", "payload": "to.iban=DE4711"},
        ):
            found = http.post("/jobs/search", data=fields, headers=ours(site) | {"cookie": ""})
            assert found.status_code == 303, found.text
            place = found.headers["location"].removeprefix("/dashboard")
            assert "DE4711" not in place
            assert "DE4711" not in found.headers["set-cookie"]
            shown = http.get(place)
            assert "data-row" in shown.text
            assert 'value="to.iban=DE4711"' in shown.text
            assert all("DE4711" not in link for link in re.findall(r'href="([^"]*)"', shown.text))
            assert "kept in the browser that searched" in httpx.get(f"{site.url}/dashboard{place}").text
        typed = http.get("/jobs", params={"payload": "to.iban=DE4711"})
        assert (typed.status_code, "DE4711" in typed.headers["location"]) == (303, False)
        assert http.post("/jobs/search", data={"q": "x"}, headers={"origin": "http://evil.example"}).status_code == 403


def test_a_browser_keeps_the_conditions_of_a_few_searches_only(site: Site, world: World) -> None:
    world.enqueue("KEPT", {"n": 29})
    with httpx.Client(base_url=f"{site.url}/dashboard", timeout=60) as http:
        places = []
        for n in range(30):
            # One header for all cookies, as a browser sends them: the oldest first.
            kept = "; ".join(f"{name}={value}" for name, value in http.cookies.items())
            fields = {"kind": "KEPT", "payload": f"n={n}"}
            found = http.post("/jobs/search", data=fields, headers=ours(site) | {"cookie": kept})
            assert found.status_code == 303, found.text
            places.append(found.headers["location"].removeprefix("/dashboard"))
        assert len([name for name in http.cookies if name.startswith("leasehold_payload_")]) == 5
        assert "data-row" in http.get(places[-1]).text
        assert 'value="n=25"' in http.get(places[25]).text
        assert "kept in the browser that searched" in http.get(places[24]).text


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("?state=ded", "state 'ded' unknown; known: queued, running, retry, dead, success, created"),
        ("?state=ded&queue=typo", "state 'ded' unknown"),
        ("?foo=bar&queue=typo", "filter 'foo' unknown; known: state, kind, queue"),
        ("?q=queue:typo+state:ded", "state 'ded' unknown"),
        ("?q=foo:bar+queue:typo", "filter 'foo' unknown"),
        ("?payload=0123abcd&queue=typo", "kept in the browser that searched"),
        ("?kind=TYPO&kind=OTHER", "kind is given more than once"),
        ("?q=TYPO+OTHER", "kind is given more than once"),
    ],
)
def test_a_filter_that_is_not_understood_lists_nothing_and_offers_no_change(
    site: Site, world: World, place: str, words: str
) -> None:
    job = world.enqueue("TYPO", queue="typo")
    with httpx.Client(base_url=f"{site.url}/dashboard", timeout=60, follow_redirects=True) as http:
        fine = http.get("/jobs?queue=typo").text
        assert str(job) in fine
        assert "data-matching" in fine
        shown = html.unescape(http.get(f"/jobs{place}").text)
        assert words in shown
        assert "data-row" not in shown
        assert "data-matching" not in shown
        for wrong in (
            {"state": "ded"},
            {"foo": "bar"},
            {"kind": ["a", "b"]},
            {"after": ["1h", "2h"]},
            {"metadata": []},
        ):
            for action in ("cancel", "retry"):
                body = {"filter": {"queue": "typo"} | wrong, "dryRun": True}
                assert http.post(f"/jobs/matching/{action}", json=body, headers=ours(site)).status_code == 422


def test_metadata_of_a_search_must_all_hold_on_the_page_and_for_its_changes(site: Site, world: World) -> None:
    both = world.enqueue("META", queue="meta", metadata=json.dumps({"a": "b", "c": "d"}))
    for one in ({"a": "b"}, {"c": "d"}):
        world.enqueue("META", queue="meta", metadata=json.dumps(one))
    with httpx.Client(base_url=f"{site.url}/dashboard", timeout=60, follow_redirects=True) as http:
        for place in ("?metadata=a=b&metadata=c=d", "?q=metadata:c=d+metadata:a=b"):
            shown = html.unescape(http.get(f"/jobs{place}").text)
            assert (shown.count("<tr data-key"), f'data-key="{both}"' in shown) == (1, True)
            assert (shown.count('name="metadata"'), '"metadata": [' in shown) == (2, True)
        body = {"filter": {"metadata": ["a=b", "c=d"]}, "dryRun": True}
        assert http.post("/jobs/matching/cancel", json=body, headers=ours(site)).json()["matched"] == 1


@pytest.mark.parametrize(
    "body",
    [b"", b"&" * 20_000, b"q=%00", b"q=%ff%fe", b"payload=%00%3D1&kind=%00", b"q=payload:a=%ed%a0%80", b"x=1&" * 200,
     b"payload=" + b"a" * 30_000, b"payload=a" * 9_000, b"state=nope&q="],
)  # fmt: skip
def test_a_search_that_makes_no_sense_is_no_defect(site: Site, world: World, body: bytes) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    with httpx.Client(base_url=f"{site.url}/dashboard", timeout=60) as http:
        answer = http.post("/jobs/search", content=body, headers=ours(site) | {"cookie": ""} | form)
        assert answer.status_code in {303, 413, 422}, answer.text
        if answer.status_code == 303:
            assert http.get(answer.headers["location"].removeprefix("/dashboard")).status_code == 200
        for cookie in ("x", "%%%", "AAAA", '"', "/w=="):
            kept = {"cookie": f"leasehold_payload_0123abcd={cookie}"}
            assert http.get("/jobs", params={"payload": "0123abcd"}, headers=kept).status_code == 200


def test_a_form_of_another_site_cannot_be_dressed_as_json(site: Site, http: httpx.Client, world: World) -> None:
    answer = http.post(
        "/queues/pause", content='{"queue": "mail"}', headers={**ours(site), "content-type": "text/plain"}
    )
    assert answer.status_code == 415


@pytest.mark.parametrize("path", sorted(ACTIONS))
def test_a_token_that_may_only_read_is_refused_every_action(reading: tuple[Site, str], path: str) -> None:
    site, token = reading
    headers = ours(site) | {"cookie": f"leasehold_csrf=abc; leasehold_session={session_of(site, token)}"}
    answer = httpx.post(f"{site.url}/dashboard{path}", json={}, headers=headers, timeout=60)
    assert answer.status_code == 403, answer.text
    assert "scope operate" in answer.json()["message"]
    assert httpx.get(f"{site.url}/dashboard{path}", headers=headers).status_code in {404, 405}


@pytest.fixture(scope="module")
def reading(admin: Any, migrated: str) -> Iterator[tuple[Site, str]]:
    """A server that needs tokens, and one that may look."""
    with admin.database(template=migrated) as name:
        dsn = admin.server.dsn(name)
        token = token_for(dsn, "read")
        with serving(dsn) as site:
            yield site, token


def test_without_a_token_there_is_only_the_sign_in_page(reading: tuple[Site, str]) -> None:
    site, token = reading
    with httpx.Client(base_url=f"{site.url}/dashboard", timeout=60) as http:
        for path in ("/", "/jobs", "/system"):
            assert http.get(path).headers["location"] == "/dashboard/sign-in"
        assert http.get("/live", headers={"sec-fetch-dest": "empty"}).status_code == 401
        assert http.get("/", headers={"cookie": f"leasehold_session={token}x"}).status_code == 303
        assert http.post("/sign-in", json={"token": token}).status_code == 403
        answer = http.post("/sign-in", json={"token": token}, headers=ours(site))
        assert answer.status_code == 200
        kept = answer.headers["set-cookie"]
        assert "HttpOnly" in kept
        assert "SameSite=strict" in kept
        assert "Path=/dashboard" in kept
        assert "Secure" not in kept
        behind = ours(site) | {"x-forwarded-proto": "https"}
        assert "Secure" in http.post("/sign-in", json={"token": token}, headers=behind).headers["set-cookie"]


def test_a_submit_token_opens_nothing(reading: tuple[Site, str]) -> None:
    site, _ = reading
    token = token_for(site.dsn, "submit")
    refused = httpx.post(f"{site.url}/dashboard/sign-in", json={"token": token}, headers=ours(site), timeout=60)
    assert refused.status_code == 403


def test_a_token_for_some_queues_sees_and_touches_nothing_else(token_home: str) -> None:
    with connect(token_home) as sql, serving(token_home) as site:
        world = made(sql)
        token = token_for(token_home, "operate", queues=["mail"])
        cookie = f"leasehold_csrf=abc; leasehold_session={session_of(site, token)}"
        with httpx.Client(
            base_url=f"{site.url}/dashboard", timeout=60, headers=ours(site) | {"cookie": cookie}
        ) as http:
            everything = "".join(
                http.get(path).text
                for path in ("/", "/queues", "/jobs", "/errors", "/workers", "/schedules", "/system")
            )
            assert str(world.jobs["queued"]) in everything
            for secret in ("letters", "BILL", "nightly", str(world.jobs["dead"]), "hunter2", "lost jobs"):
                assert secret not in everything, secret
            assert http.get(f"/jobs/{world.jobs['dead']}").status_code == 404
            assert http.post("/jobs/retry", json={"ids": [str(world.jobs["dead"])]}).status_code == 404
            assert http.post("/queues/pause", json={"queue": "letters"}).status_code == 404
            assert http.post("/limits/set", json={"scope": "global", "maxRunning": 0}).status_code == 404
            assert http.post("/schedules/run", json={"key": "nightly"}).status_code == 403
            matching = http.post("/jobs/matching/retry", json={"filter": {}, "dryRun": True}).json()
            assert matching["matched"] == 0
            clone = {"id": str(world.jobs["queued"]), "payload": "{}", "queue": "pay", "key": "k"}
            assert http.post("/jobs/clone", json=clone).status_code == 403


def test_a_server_with_the_api_role_alone_serves_every_page(token_home: str, admin: Any) -> None:
    login = f"test_{uuid4().hex[:12]}"
    admin.connection.execute(f"create role {login} login password 'api'")
    try:
        admin.connection.execute(f"grant leasehold_api to {login}")
        with connect(token_home) as sql, serving(make_conninfo(token_home, user=login, password="api")) as site:
            world = made(sql)
            with httpx.Client(base_url=site.page(""), timeout=60, headers=ours(site)) as http:
                for path in (*PATHS, f"/jobs/{world.jobs['dead']}", "/data/statistics"):
                    answer = http.get(path)
                    assert answer.status_code == 200, f"{path}: {answer.text}"
                assert "lost jobs" in http.get("/system").text
                assert "Who holds vacuum back" in http.get("/system").text
                assert http.post("/jobs/retry", json={"ids": [str(world.jobs["dead"])]}).status_code == 200
                world.dead("AGAIN", 2)
                canary = {"kind": "AGAIN", "errorClass": "shop.ConnectionResetError"}
                assert http.post("/canaries/start", json=canary).status_code == 200
    finally:
        admin.connection.execute(f"drop role {login}")


def test_the_dashboard_can_be_read_only_or_off(home: str, world: World) -> None:
    with serving(home, dashboard="read-only") as site:
        page = httpx.get(f"{site.url}/dashboard/queues")
        assert 'data-dialog="pause"' not in page.text
        answer = httpx.post(f"{site.url}/dashboard/queues/pause", json={"queue": "mail"}, headers=ours(site))
        assert answer.status_code == 403
        assert "read-only" in answer.json()["message"]
    with serving(home, dashboard="off") as site:
        assert httpx.get(f"{site.url}/dashboard/").status_code == 404
        assert httpx.get(f"{site.url}/", headers={"accept": "text/html"}).status_code == 404


def test_a_setting_that_makes_no_sense_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEHOLD_DASHBOARD", "readonly")
    with pytest.raises(ConfigError, match="LEASEHOLD_DASHBOARD='readonly' unknown"):
        ApiSettings.from_env()


def test_a_program_that_asks_for_the_root_is_not_led_anywhere(site: Site) -> None:
    assert httpx.get(site.url).status_code == 404


async def test_below_a_path_every_link_is_below_it_too(dsn: str) -> None:
    web = FastAPI()
    async with App(dsn=dsn) as app:
        api = leasehold.api(app, tokens=False)
        web.mount("/inner/leasehold", api)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://test") as http:
            answer = await http.get("/inner/leasehold/", headers={"accept": "text/html"})
            assert answer.headers["location"] == "/inner/leasehold/dashboard/"
            for path in ("", "jobs", "queues"):
                text = (await http.get(f"/inner/leasehold/dashboard/{path}")).text
                links = re.findall(r'(?:href|src|action|data-src|data-base)="([^"#]+)"', text)
                assert len(links) > 10
                assert [link for link in links if not link.startswith("/inner/leasehold/dashboard")] == []
                style = next(link for link in links if link.endswith("main.css"))
                assert (await http.get(style)).status_code == 200
        await api.state.leasehold.aclose()


async def test_behind_a_proxy_that_takes_a_path_off_the_commands_of_a_job_name_it_once(dsn: str) -> None:
    with connect(dsn) as sql:
        job = World(sql).enqueue("PROXIED")
    async with App(dsn=dsn) as app:
        api = leasehold.api(app, tokens=False)
        transport = httpx.ASGITransport(api, root_path="/outer")
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            text = html.unescape((await http.get(f"/outer/dashboard/jobs/{job}")).text)
        assert f"curl -s http://test/outer/jobs/{job}" in text
        await api.state.leasehold.aclose()


def test_metadata_is_shown_and_filtered_by(http: httpx.Client, world: World) -> None:
    mine, other = (world.enqueue("META", queue="meta", metadata=f'{{"tenant": "{name}"}}') for name in ("7", "8"))
    shown = http.get("/jobs", params={"metadata": "tenant=7"}).text
    assert str(mine) in shown
    assert str(other) not in shown
    assert '"tenant": "7"' in html.unescape(http.get(f"/jobs/{mine}").text)


def test_metadata_is_hidden_where_payloads_are_and_a_clone_keeps_it(
    site: Site, http: httpx.Client, world: World
) -> None:
    metadata = '{"password": "hunter3", "trace": "t1"}'
    job = world.enqueue("META", queue="meta", metadata=metadata, tags=["a"])
    shown = html.unescape(http.get(f"/jobs/{job}").text)
    assert "hunter3" not in shown
    assert '"password": "•••"' in shown
    assert '"trace": "t1"' in shown
    wanted = {"id": str(job), "payload": "{}", "queue": "meta2", "key": uuid4().hex}
    answer = httpx.post(f"{site.url}/dashboard/jobs/clone", json=wanted, headers=ours(site), timeout=60)
    assert answer.status_code == 200, answer.text
    made = answer.json()["go"].removeprefix("/jobs/")
    row = world.sql.execute("select queue, tags, metadata from jobs where id = %s", [made]).fetchone()
    assert row == {"queue": "meta2", "tags": ["a"], "metadata": {"password": "hunter3", "trace": "t1"}}


def test_the_metrics_know_the_pages_by_their_templates(site: Site, http: httpx.Client, world: World) -> None:
    http.get(f"/jobs/{world.jobs['dead']}")
    text = httpx.get(f"{site.url}/metrics").text
    assert 'route="/dashboard/jobs/{job_id}"' in text
    assert str(world.jobs["dead"]) not in text


def test_the_overview_names_a_kind_that_no_live_worker_knows(dsn: str) -> None:
    with connect(dsn) as sql:
        sql.execute("select start_worker('w', kinds => array['KNOWN'])")
        for kind, queue in (("KNOWN", "one"), ("NOSUCH", "two"), ("KNOWN", "two")):
            sql.execute("select enqueue(%s, queue => %s)", [kind, queue])
        ago = "clock() - interval '5 min'"
        sql.execute(f"update jobs set created_at = {ago}, run_at = {ago}, updated_at = {ago}")
    with serving(dsn) as site:
        shown = httpx.get(f"{site.url}/dashboard/", timeout=60).text
    assert "NOSUCH: no live worker knows it" in shown
    assert "two: 2 ready" in shown
    assert "KNOWN: no live worker" not in shown
    assert "one: " in shown


def copied(text: str) -> dict[str, list[str]]:
    """The commands of a job's page as a shell splits them, by their labels."""
    found = re.findall(r'data-copy="([^"]*)" aria-label="Copy: ([^"]*)"', text)
    return {label: shlex.split(html.unescape(command)) for command, label in found}


def test_the_commands_of_a_job_carry_all_that_it_had(site: Site, world: World) -> None:
    payload = {"to": "it's; $(rm -rf /)", "n": [1, None]}
    job = world.enqueue(
        "CARRIED", payload, queue="carried", priority=-7, max_attempts=4, exclusive_key="-account 'x'",
        tags=["a b", "-c"], metadata=json.dumps({"trace": "$HOME", "iban": "DE00"}),
    )  # fmt: skip
    commands = copied(httpx.get(f"{site.url}/dashboard/jobs/{job}", timeout=60).text)
    curl = commands["Submit again with curl"]
    assert json.loads(curl[-1]) == {
        "jobType": "CARRIED", "queue": "carried", "priority": -7, "maxAttempts": 4, "exclusiveKey": "-account 'x'",
        "tags": ["a b", "-c"], "metadata": {"trace": "$HOME", "iban": "•••"}, "payload": payload,
        "idempotencyKey": "CHOOSE-A-NEW-KEY",
    }  # fmt: skip
    assert not any("Authorization" in word for word in curl)
    words = commands["Enqueue again with the CLI"]
    assert words[:2] == ["leasehold", "enqueue"]
    done = CliRunner().invoke(cli, [*words[1:], "--anyway", "--dsn", site.dsn])
    assert done.exit_code == 0, done.output
    names = "kind, payload, queue, priority, max_attempts, exclusive_key, tags, metadata ->> 'trace' as trace"
    ids = [job, UUID(done.stdout.strip())]
    old, new = world.sql.execute(f"select {names} from jobs where id = any(%s::uuid[])", [ids]).fetchall()
    assert old == new


def test_a_payload_with_a_name_that_no_parameter_has_is_copied_whole(site: Site, world: World) -> None:
    job = world.enqueue("NAMES", {"a=b": 1, "c:": 2}, queue="names")
    words = copied(httpx.get(f"{site.url}/dashboard/jobs/{job}", timeout=60).text)["Enqueue again with the CLI"]
    assert any(word.startswith("--payload=") and json.loads(word[10:]) == {"a=b": 1, "c:": 2} for word in words)


def test_where_a_token_is_needed_curl_takes_it_from_the_shell(token_home: str) -> None:
    token = token_for(token_home, "operate")
    with connect(token_home) as sql:
        job = World(sql).enqueue("TOKEN")
    with serving(token_home, tokens=True) as site:
        headers = {"authorization": f"Bearer {token}"}
        session = {"leasehold_session": session_of(site, token)}
        shown = httpx.get(f"{site.url}/dashboard/jobs/{job}", cookies=session, timeout=60)
        for label in ("Show with curl", "Submit again with curl"):
            assert "Authorization: Bearer $LEASEHOLD_TOKEN" in copied(shown.text)[label]
        assert '"Authorization: Bearer $LEASEHOLD_TOKEN"' in html.unescape(shown.text), "which the shell fills in"
        # What the page's command asks for is answered.
        assert httpx.get(f"{site.url}/jobs/{job}", headers=headers).status_code == 200
