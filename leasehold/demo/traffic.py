"""Customers for the demo: a steady trickle of jobs of every kind."""

import asyncio
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from leasehold.demo.tasks import charge_card, import_file, make_report, send_email

_NAMES = ("ada", "grace", "edsger", "barbara", "donald", "frances", "tony", "lynn")


async def run_traffic(*, jobs_per_second: float) -> None:
    """Enqueue jobs until cancelled."""
    number = 0
    while True:
        number += 1
        await _one(number)
        await asyncio.sleep(random.expovariate(jobs_per_second))


async def _one(number: int) -> None:
    name = random.choice(_NAMES)
    match random.choices(("mail", "later", "report", "charge", "import"), (60, 8, 10, 20, 2))[0]:
        case "mail":
            await send_email.aenqueue(to=f"{name}@example.com", subject=f"Order {number} is on its way")
        case "later":
            reminder = send_email.using(run_after=timedelta(seconds=random.randrange(2, 20)))
            await reminder.aenqueue(to=f"{name}@example.com", subject="You left something in your cart")
        case "report":
            await make_report.aenqueue(month=datetime.now(UTC).strftime("%Y-%m"), rows=number)
        case "charge":
            customer = random.randrange(20)
            one_by_one = charge_card.using(
                exclusive_key=f"customer-{customer}", idempotency_key=f"order-{datetime.now(UTC).timestamp()}-{number}"
            )
            await one_by_one.aenqueue(customer=customer, amount=Decimal(number % 97) + Decimal("0.99"))
        case "import":
            await import_file.aenqueue(name=f"catalogue-{number}.csv")
