"""Real Chromium on real servers. A page that logs an error or violates its policy fails the test that looked at it."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.http.conftest import connect
from tests.web.serving import Site, serving
from tests.web.world import World, made

expect.set_options(timeout=30_000)

WATCH = """
window.__violations = [];
document.addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI }) =>
  window.__violations.push(`${violatedDirective} ${blockedURI}`));
"""

Opened = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser. For a module, not for the run: its event loop must be gone before a test that has one of its own."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no chromium is installed: apt-get install chromium")
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture(scope="module")
def home(admin: Any, migrated: str) -> Iterator[str]:
    """The database of a module's tests."""
    with admin.database(template=migrated) as name:
        yield admin.server.dsn(name)


@pytest.fixture(scope="module")
def site(home: str) -> Iterator[Site]:
    """The server of a module's tests, without tokens."""
    with serving(home, hidden_fields=frozenset({"password", "iban"})) as running:
        yield running


@pytest.fixture
def token_home(admin: Any, migrated: str) -> Iterator[str]:
    """A database of its own, for tests that make tokens: from the first one on they are needed."""
    with admin.database(template=migrated) as name:
        yield admin.server.dsn(name)


@pytest.fixture(scope="module")
def world(home: str) -> Iterator[World]:
    """What there is to see."""
    with connect(home) as sql:
        yield made(sql)


@pytest.fixture
def opened(browser: Browser) -> Iterator[Opened]:
    """Opens pages; at the end none of them may have complained."""
    complaints: list[str] = []
    pages: list[Page] = []
    with ExitStack() as stack:

        def open_(url: str, *, live: bool = True, refused: tuple[int, ...] = (), **options: Any) -> Page:
            def heard(kind: str, text: str) -> None:
                expected = any(
                    text.startswith(f"Failed to load resource: the server responded with a status of {status}")
                    for status in refused
                )
                if kind in {"error", "warning"} and not expected:
                    complaints.append(f"{kind}: {text}")

            context: BrowserContext = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **options})
            stack.callback(context.close)
            context.add_init_script(WATCH)
            context.set_default_timeout(90_000)
            page = context.new_page()
            page.on("console", lambda said: heard(said.type, said.text))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            pages.append(page)
            page.goto(url)
            if live:
                ready(page)
            return page

        yield open_
        for page in pages:
            if page.url.startswith("http") and not page.is_closed():
                complaints += page.evaluate("window.__violations || []")
        assert complaints == []


def ready(page: Page) -> None:
    """Wait until the scripts run and the server speaks."""
    page.wait_for_selector('#live[data-state="live"]')
