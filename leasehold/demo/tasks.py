"""The demo's tasks: mail, reports, payments, imports; quick and slow, reliable and not."""

import asyncio
import random
import time
from datetime import timedelta
from decimal import Decimal
from typing import Any

from leasehold.app import App
from leasehold.context import current_job
from leasehold.outcome import Cancel
from leasehold.retry import ExponentialBackoff

app = App()


class MailServerBusy(Exception):
    """The demo's favourite failure."""


@app.task(kind="SEND_EMAIL", queue="mail", lease=5, timeout=4, retry=ExponentialBackoff(base=0.5, cap=8))
async def send_email(to: str, subject: str) -> dict[str, Any]:
    """Quick, and refused now and then: the retry gets it through."""
    await asyncio.sleep(random.uniform(0.02, 0.2))
    if random.random() < 0.08:
        raise MailServerBusy(f"451 try again later: {to}")
    return {"to": to, "subject": subject, "bytes": random.randrange(400, 4000)}


@app.task(kind="MAKE_REPORT", queue="reports", lease=5)
def make_report(month: str, rows: int) -> int:
    """Plain `def`: runs in a thread, and looks now and then whether it should stop."""
    total = 0
    for _ in range(10):
        current_job().checkpoint()
        time.sleep(random.uniform(0.05, 0.25))
        total += rows
    return total


@app.task(kind="CHARGE_CARD", queue="payments", priority=10, lease=5, max_attempts=3)
async def charge_card(customer: int, amount: Decimal) -> dict[str, Any]:
    """One at a time for each customer; a few cards are simply no good."""
    await asyncio.sleep(random.uniform(0.05, 0.3))
    if random.random() < 0.03:
        raise Cancel(f"card of customer {customer} was refused")
    return {"customer": customer, "charged": str(amount)}


@app.task(kind="IMPORT_FILE", queue="imports", priority=-5, lease=5)
async def import_file(name: str) -> int:
    """Slow: kill its worker, and watch the lease bring it back."""
    await asyncio.sleep(random.uniform(3, 9))
    return random.randrange(1000, 100_000)


@app.schedule(every=timedelta(seconds=10), key="refresh-rates")
@app.task(kind="REFRESH_RATES", queue="imports", lease=5)
async def refresh_rates() -> dict[str, float]:
    """On time, every ten seconds: once, however many workers there are."""
    await asyncio.sleep(random.uniform(0.1, 0.4))
    return {"EUR": round(random.uniform(0.9, 1.1), 4)}
