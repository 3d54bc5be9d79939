"""What a program says about a database that is away or refuses: once when it begins, once when it is over."""

import logging
import threading
import time

from leasehold.errors import DatabaseUnavailable, LeaseholdError

logger = logging.getLogger(__name__)


class Outage:
    """Kept by several loops and threads together: an outage that all of them notice is one line of the log."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._away: dict[str, float] = {}
        """The parts that get no answer, and since when."""
        self._refused: dict[str, tuple[float, set[str]]] = {}
        """The parts whose calls are refused, since when, and the reasons that have been said."""

    def met(self, part: str, error: LeaseholdError) -> None:
        """A call of this part has failed; it waits and tries again."""
        now = time.monotonic()
        with self._guard:
            if isinstance(error, DatabaseUnavailable):
                first = not self._away
                self._away.setdefault(part, now)
            else:
                said = self._refused.setdefault(part, (now, set()))[1]
                first = str(error) not in said and len(said) < 10
                said.add(str(error))
        if isinstance(error, DatabaseUnavailable):
            logger.log(logging.WARNING if first else logging.DEBUG, "%s waits for the database: %s", part, error)
        elif first:
            logger.error("%s is refused by the database, and tries again: %s", part, error)

    def over(self, part: str) -> None:
        """A call of this part has been answered."""
        if not self._away and not self._refused:
            return
        now = time.monotonic()
        with self._guard:
            away, refused = self._away.pop(part, None), self._refused.pop(part, None)
            back = away is not None and not self._away
        if back and away is not None:
            logger.warning("the database is back: %s goes on after %.1f s", part, now - away)
        if refused is not None:
            logger.warning("%s goes on after %.1f s of refusals", part, now - refused[0])
