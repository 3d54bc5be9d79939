"""What a killed worker of this host left behind: its jobs, under leases that are not renewed.

A worker dies by SIGKILL, for want of memory, or by a task that ends the process. What it only had in hand is given back
at once and costs nothing. So is what it was running beside other jobs: which of them killed it is not known. One that
was running when two workers in a row died is run alone from then on; if it is the killer, the next death is its own,
and costs no other job an attempt.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from leasehold.db.link import Link
from leasehold.db.store import Store, Token
from leasehold.errors import DatabaseUnavailable, LeaseholdError, LockTimeout
from leasehold.worker.journal import Death, Place

if TYPE_CHECKING:
    from leasehold.worker.runner import Runner

logger = logging.getLogger(__name__)

EVERY: Final = 2.0
"""Seconds between two looks for workers that have died."""


class Aftermath:
    """The loop that clears up after dead workers of the same host, user and database."""

    def __init__(self, place: Place, link: Link, store: Store, runner: "Runner") -> None:
        self._place = place
        self._link = link
        self._store = store
        self._runner = runner

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self._look()
            except OSError as error:  # a full or broken disk is no reason to end the worker
                logger.warning("journals of dead workers cannot be read: %s", error)
            await asyncio.sleep(EVERY)

    async def _look(self) -> None:
        found = False
        for death in self._place.deaths():
            found = True
            if not await self._clear_up(death):
                break  # its journal stays, and is taken up at the next look, here or by another worker
        if found:
            self._runner.solitude.suspects = self._place.suspects()

    async def _clear_up(self, death: Death) -> bool:
        """Give back all that the worker held; but not the only one that it was running: that one has failed.

        False: the database is away, and it has to be done later.
        """
        worker, running = death.worker, death.running
        try:
            owned = await self._link.run(self._store.owned(worker))
            free = [token for token in owned if len(running) != 1 or token.id not in running]
            given = await self._release(worker, free)
        except DatabaseUnavailable as error:
            logger.debug("worker %s died; its jobs are given back when the database is there: %s", worker, error)
            return False
        except LeaseholdError as error:
            logger.warning("worker %s died; its jobs are left to their leases: %s", worker, error)
            return True
        death.cleared = len(given) == len(free)  # else at the next look: another session has locked the rest
        if given or (owned and death.cleared):
            self._say(worker, owned, given, running)
        return True

    async def _release(self, worker: str, tokens: list[Token]) -> list[Token]:
        """Give them back; one by one if a row is locked, so that only that job waits. Those that are not locked."""
        if not tokens:
            return []
        try:
            await self._link.run(self._store.release(worker, tokens))
        except LockTimeout:
            return [token for token in tokens if await self._release_one(worker, token)]
        return tokens

    async def _release_one(self, worker: str, token: Token) -> bool:
        try:
            await self._link.run(self._store.release(worker, [token]))
        except LockTimeout as error:
            logger.debug("worker %s died; its job %s is given back later: %s", worker, token.id, error)
            return False
        return True

    @staticmethod
    def _say(worker: str, owned: list[Token], given: list[Token], running: set[str]) -> None:
        # Not all that its journal has are its own still: it may have reported some, or lost them.
        ran = sum(token.id in running for token in owned)
        logger.warning(
            "worker %s died with %d jobs in hand, %d of them running: %d given back uncounted%s", worker, len(owned),
            ran, len(given), f"; {next(iter(running))} has failed with it" if len(running) == ran == 1 else "",
        )  # fmt: skip
