"""Logs that the database is away or refuses calls: once when it begins, once when it is over."""

import logging
import threading

from leasehold._clock import monotonic
from leasehold._logger import logger_of
from leasehold.errors import DatabaseUnavailable, LeaseholdError

logger = logger_of(__name__)


class Outage:
    """Shared by loops and threads: an outage that all of them notice is one line of the log."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._away: dict[str, float] = {}
        """The parts that get no answer, and since when."""
        self._refused: dict[str, tuple[float, set[str]]] = {}
        """The parts whose calls are refused, since when, and the reasons that have been logged."""
        self.noted = False
        """Whether a call of any part has failed and has not been answered since."""

    def met(self, part: str, error: LeaseholdError) -> None:
        """Note that a call of this part has failed and will be tried again."""
        now = monotonic()
        with self._guard:
            self.noted = True
            if isinstance(error, DatabaseUnavailable):
                first = not self._away
                self._away.setdefault(part, now)
            else:
                said = self._refused.setdefault(part, (now, set()))[1]
                first = str(error) not in said and len(said) < 50
                said.add(str(error))
        if isinstance(error, DatabaseUnavailable):
            logger.log(logging.WARNING if first else logging.DEBUG, "%s waits for the database: %s", part, error)
        elif first:
            logger.error("%s is refused by the database, and tries again: %s", part, error)

    def over(self, part: str) -> None:
        """Note that a call of this part has been answered."""
        if not self.noted:
            return
        now = monotonic()
        with self._guard:
            away, refused = self._away.pop(part, None), self._refused.pop(part, None)
            back = away is not None and not self._away
            self.noted = bool(self._away or self._refused)
        if back and away is not None:
            logger.warning("the database is back: %s goes on after %.1f s", part, now - away)
        if refused is not None:
            logger.warning("%s goes on after %.1f s of refusals", part, now - refused[0])
