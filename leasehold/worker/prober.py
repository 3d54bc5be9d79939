"""Finds out whether hints arrive, by sending one to itself. Behind a pooler LISTEN succeeds and nothing ever comes."""

import asyncio
import contextlib
import logging
import secrets
import time

from leasehold.db.link import Link
from leasehold.db.listen import PROBE, Listener
from leasehold.db.store import Store
from leasehold.errors import LeaseholdError

logger = logging.getLogger(__name__)

_PATIENCE = 2.0
_AGAIN_WHEN_WELL = 180.0
_AGAIN_WHEN_NOT = 10.0


class Prober:
    """The loop that keeps `well` true or false."""

    def __init__(self, link: Link, store: Store, listener: Listener) -> None:
        self._link = link
        self._store = store
        self._listener = listener
        self._arrived = False
        self._doubted = False
        self._probed = 0.0

    @property
    def well(self) -> bool:
        """Whether hints arrive on the present connection, as far as is known."""
        return self._arrived and self._listener.listening.is_set()

    def doubt(self) -> None:
        """There was work without a hint: look whether hints still arrive."""
        if self.well and time.monotonic() - self._probed > _AGAIN_WHEN_NOT:
            self._doubted = True
            self._listener.renewed.set()

    async def run(self) -> None:
        """Probe until cancelled: at each new connection, and now and then."""
        known: bool | None = None
        while True:
            await self._listener.listening.wait()
            if self._listener.renewed.is_set():
                self._listener.renewed.clear()
                if not self._doubted:
                    self._arrived = False  # what was known is known of another connection
            self._doubted = False
            arrived = await self._probe()
            if self._arrived and not arrived:
                self._listener.drop()  # it did bring hints, and stands still
            if arrived != known:
                logger.info("hints %s", "arrive" if arrived else "do not arrive: polling every second instead")
            known = self._arrived = arrived
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN_WHEN_WELL if arrived else _AGAIN_WHEN_NOT):
                    await self._listener.renewed.wait()

    async def _probe(self) -> bool:
        self._probed = time.monotonic()
        name = PROBE + secrets.token_hex(8)
        arrival = self._listener.expect(name)
        try:
            await self._link.run(self._store.hint([name]))
            # Not wait_for: before Python 3.12 it swallows a cancellation that comes together with the arrival.
            async with asyncio.timeout(_PATIENCE):
                await arrival
        except (LeaseholdError, TimeoutError) as error:
            logger.debug("a probe did not arrive: %s", error)
            return False
        return True
