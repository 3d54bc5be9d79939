"""Canary retries of error groups."""

from leasehold.db.store import Canary
from leasehold.web.visit import Visit
from leasehold.web.words import number

_STAGES = {1: "the first ten", 2: "a tenth", 3: "all the rest"}


async def canaries(visit: Visit) -> list[tuple[Canary, str]]:
    """The latest ones, each in words; none for those who may see some queues or kinds only."""
    if visit.visitor.restricted:
        return []
    found = await visit.recall("canaries", 1.0, lambda: visit.ask(visit.store.canaries(10)))
    return [(canary, words(canary)) for canary in found]


def words(canary: Canary) -> str:
    """How far it is, and why it stopped."""
    parts = [
        f"{number(canary.retried)} of {number(canary.total, canary.total_capped)} retried",
        f"{number(canary.succeeded)} succeeded",
        f"{number(canary.failed)} failed again",
    ]
    if canary.state == "running":
        parts = [_STAGES.get(canary.stage, f"stage {canary.stage}"), *parts, f"{number(canary.pending)} under way"]
    if canary.reason:
        parts.append(canary.reason)
    return " · ".join(parts)
