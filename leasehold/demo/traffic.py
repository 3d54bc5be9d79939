"""Customers for the demo: a steady trickle of jobs of every kind."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from leasehold.demo import tasks
from leasehold.errors import DatabaseUnavailable
from leasehold.job import Job

_NAMES = ("ada", "grace", "edsger", "barbara", "donald", "frances", "tony", "lynn")

_MIX = {"mail": 50, "later": 8, "report": 8, "charge": 18, "import": 2, "album": 2, "webhook": 11, "poison": 0.3}
"""How often which; an album is several jobs."""


async def run_traffic(*, jobs_per_second: float, acknowledged: Callable[[Job[Any]], None] = lambda _: None) -> None:
    """Enqueue jobs until cancelled, and pass each whose enqueueing has returned to `acknowledged`."""
    number = 0
    while True:
        number += 1
        try:
            async for job in _some(number):
                acknowledged(job)
        except DatabaseUnavailable:  # nothing was acknowledged; customers come back
            await asyncio.sleep(1)
        await asyncio.sleep(random.expovariate(jobs_per_second))


async def _some(number: int) -> AsyncIterator[Job[Any]]:
    name = random.choice(_NAMES)
    match random.choices(tuple(_MIX), tuple(_MIX.values()))[0]:
        case "mail":
            yield await tasks.send_email.aenqueue(to=f"{name}@example.com", subject=f"Order {number} is on its way")
        case "later":
            reminder = tasks.send_email.using(run_after=timedelta(seconds=random.randrange(2, 20)))
            yield await reminder.aenqueue(to=f"{name}@example.com", subject="You left something in your cart")
        case "report":
            yield await tasks.make_report.aenqueue(month=datetime.now(UTC).strftime("%Y-%m"), rows=number)
        case "charge":
            customer = random.randrange(20)
            one_by_one = tasks.charge_card.using(
                exclusive_key=f"customer-{customer}", idempotency_key=f"order-{datetime.now(UTC).timestamp()}-{number}"
            )
            yield await one_by_one.aenqueue(customer=customer, amount=Decimal(number % 97) + Decimal("0.99"))
        case "import":
            yield await tasks.import_file.aenqueue(name=f"catalogue-{number}.csv")
        case "album":
            for picture in range(random.randrange(3, 12)):
                yield await tasks.make_thumbnail.aenqueue(picture=f"{name}-{number}-{picture}.jpg", width=480)
        case "webhook":
            host = "down.example.net" if random.random() < 0.05 else "hooks.example.com"
            yield await tasks.call_webhook.aenqueue(url=f"https://{host}/{name}", event="order.paid")
        case "poison":
            yield await tasks.open_attachment.aenqueue(name=f"invoice-{number}.exe")
