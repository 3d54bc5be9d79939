"""Takes the pictures of the dashboard for the documentation, from a running demo: python docs/screenshots.py [URL].

`leasehold demo` in another terminal, a minute of traffic, a worker killed, then this. Needs chromium and playwright.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).parent / "screenshots"
SCREENS = {"overview": "/", "queues": "/queues", "jobs": "/jobs", "errors": "/errors", "workers": "/workers"}
WIDE, NARROW = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
LARGEST = 300_000


def main(url: str) -> None:
    """Take them all."""
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for theme, size, suffix in (("light", WIDE, "light"), ("dark", WIDE, "dark"), ("light", NARROW, "narrow")):
            page = browser.new_context(viewport=size, color_scheme=theme).new_page()
            for name, path in SCREENS.items():
                take(page, f"{url}/dashboard{path}", f"{name}-{suffix}")
            # One that a killed worker left behind; no traceback, which would show where all this is installed.
            page.goto(f"{url}/dashboard/jobs?error=LeaseExpired&state=success")
            link = page.locator("table.jobs a.row").first
            if link.count():
                take(page, url + str(link.get_attribute("href")), f"job-{suffix}")
        browser.close()


def take(page: Page, address: str, name: str) -> None:
    """Take one."""
    page.goto(address)
    page.wait_for_selector('#live[data-state="live"]')
    page.wait_for_timeout(1500)  # the charts come a moment later
    path = FOLDER / f"{name}.png"
    page.screenshot(path=path)
    if path.stat().st_size > LARGEST:
        raise SystemExit(f"{path} is larger than {LARGEST:,} bytes; make the window smaller")


if __name__ == "__main__":
    main((sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8484").rstrip("/"))
