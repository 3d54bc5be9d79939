"""The demo's tasks: mail, reports, payments, imports, pictures, webhooks; quick and slow, reliable and not."""

import asyncio
import os
import random
import signal
import time
from datetime import timedelta
from decimal import Decimal
from typing import Any

from leasehold.app import App
from leasehold.context import current_job
from leasehold.outcome import Cancel
from leasehold.retry import ExponentialBackoff
from leasehold.task import TaskDecorator

app = App()


def task(**options: Any) -> TaskDecorator:
    """Register a task: its lease is short, to see its jobs return; its attempts suffice for many killed workers."""
    decorator: TaskDecorator = app.task(**{"lease": 6, "max_attempts": 10, **options})
    return decorator


class MailServerBusy(Exception):
    """The demo's favourite failure."""


class WebhookRefused(Exception):
    """A server that the shop calls is down."""


@task(kind="SEND_EMAIL", queue="mail", timeout=4, retry=ExponentialBackoff(base=0.5, cap=8))
async def send_email(to: str, subject: str) -> dict[str, Any]:
    """Quick, and refused now and then: the retry gets it through."""
    await asyncio.sleep(random.uniform(0.02, 0.2))
    if random.random() < 0.08:
        raise MailServerBusy(f"451 try again later: {to}")
    return {"to": to, "subject": subject, "bytes": random.randrange(400, 4000)}


@task(kind="MAKE_REPORT", queue="reports")
def make_report(month: str, rows: int) -> int:
    """Plain `def`: runs in a thread, and checks now and then whether it should stop."""
    total = 0
    for _ in range(10):
        current_job().checkpoint()
        time.sleep(random.uniform(0.05, 0.25))
        total += rows
    return total


@task(kind="CHARGE_CARD", queue="payments", priority=10)
async def charge_card(customer: int, amount: Decimal) -> dict[str, Any]:
    """One at a time for each customer; a few cards are simply no good."""
    await asyncio.sleep(random.uniform(0.05, 0.3))
    if random.random() < 0.03:
        raise Cancel(f"card of customer {customer} was refused")
    return {"customer": customer, "charged": str(amount)}


@task(kind="IMPORT_FILE", queue="imports", priority=-5)
async def import_file(name: str) -> int:
    """Slow, and says how far it is: kill its worker, and watch the lease bring it back."""
    rows = random.randrange(1000, 100_000)
    steps = random.randrange(10, 40)
    for step in range(steps):
        current_job().progress(step / steps, f"{rows * step // steps:,} of {rows:,} rows")
        await asyncio.sleep(0.25)
    return rows


@task(kind="MAKE_THUMBNAIL", queue="pictures")
async def make_thumbnail(picture: str, width: int) -> dict[str, Any]:
    """Many at once, whenever a customer uploads an album."""
    await asyncio.sleep(random.uniform(0.1, 0.6))
    return {"picture": picture, "width": width, "height": width * 2 // 3}


@task(kind="CALL_WEBHOOK", queue="webhooks", timeout=3, max_attempts=4, retry=ExponentialBackoff(base=1, cap=10))
async def call_webhook(url: str, event: str) -> int:
    """Some servers stay down: after four attempts the job is dead, and waits for a person."""
    await asyncio.sleep(random.uniform(0.05, 0.4))
    if "down" in url or random.random() < 0.1:
        current_job().log.warning("no luck with %s", url)
        raise WebhookRefused(f"503 from {url} for {event}")
    return 200


@task(kind="OPEN_ATTACHMENT", queue="imports", executor="process", max_attempts=2)
def open_attachment(name: str) -> None:
    """Poison: it kills its process every time, and ends dead after exactly two attempts. Its worker lives on."""
    os.kill(os.getpid(), signal.SIGKILL)


@app.schedule(every=timedelta(seconds=10), key="refresh-rates")
@task(kind="REFRESH_RATES", queue="imports")
async def refresh_rates() -> dict[str, float]:
    """On time, every ten seconds: once, however many workers there are."""
    await asyncio.sleep(random.uniform(0.1, 0.4))
    return {"EUR": round(random.uniform(0.9, 1.1), 4)}


@app.schedule("* * * * *", key="close-the-till")
@task(kind="CLOSE_TILL", queue="payments")
async def close_till() -> None:
    """By cron, every minute."""
    await asyncio.sleep(random.uniform(0.5, 1.5))
