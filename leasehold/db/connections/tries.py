"""What follows when a call has failed: whether it is sent again, until when, and which error its caller gets."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from leasehold._clock import monotonic
from leasehold.db.call import Call, Series
from leasehold.db.connections.io import CallDeadline
from leasehold.db.connections.link import Backoff
from leasehold.db.sqlstates import certainly_undone, meaning_of, trouble_of
from leasehold.errors import DatabaseUnavailable, LockTimeout

_SHOWN: Final = 3


class Tries:
    """The tries of one call, from the first that failed on."""

    def __init__(
        self, what: Call[Any] | Series[Any], *, begun: float, deadline: float, wait: float, answer: float | None
    ) -> None:
        """`answer`: seconds for each answer; None: until the deadline of all tries."""
        self._what = what
        self._begun = begun
        self.deadline = deadline
        """Until when the call may be sent again, by the monotonic clock."""
        self._wait = wait
        self._answer = answer
        self.unknown = False
        """Whether the call may have happened."""
        self.locked = False
        """Whether the last try was undone because another transaction is using one of its keys."""
        self._given_up = False
        self._backoff = Backoff(first=0.02, longest=0.5)

    def failed(self, error: psycopg.Error, sent: CallDeadline | None) -> float:
        """Return the seconds until the next try, or raise what the error means. `sent` is None if nothing was sent."""
        self.unknown = self.unknown or (sent is not None and not certainly_undone(error))
        self.locked = _waited_for_key(error) and bool(self._what.keys)
        if self.locked and self._answer is not None:
            self.deadline = max(self.deadline, self._begun + self._answer)
        if sent is not None and sent.passed:
            self._once_more(error)
        pause = self._backoff.pause()
        # A try that begins after the deadline would only be aborted, with its outcome unknown.
        self._raise_unless_repeatable(error, self.deadline - pause)
        return pause

    def _once_more(self, error: psycopg.Error) -> None:
        """Allow one more try after one that was given up, if time is left and the call may be repeated."""
        if self._answer is None or self._given_up or not self._what.repeatable:
            within = monotonic() - self._begun if self._answer is None else self._answer
            message = f"no answer from PostgreSQL within {within:.3g} s; the connection was given up"
            given_up = DatabaseUnavailable(message)
            name_jobs(given_up, self._what, unknown=self.unknown)
            raise given_up from error
        self._given_up = True
        self.deadline = monotonic() + self._wait

    def _raise_unless_repeatable(self, error: psycopg.Error, deadline: float) -> None:
        divisible = isinstance(self._what, Call) and self._what.divisible
        meaning = (trouble_of if divisible else meaning_of)(error, self._what.invalid)
        if meaning is None:
            raise error
        again = isinstance(meaning, DatabaseUnavailable) and (self._what.repeatable or certainly_undone(error))
        if divisible and isinstance(meaning, LockTimeout):
            again = False
        if again and monotonic() < deadline:
            return
        if self.locked:
            meaning = self._key_in_use()
        if isinstance(meaning, DatabaseUnavailable):
            name_jobs(meaning, self._what, unknown=self.unknown)
        raise meaning from error

    def _key_in_use(self) -> LockTimeout:
        keys = self._what.keys
        shown = ", ".join(repr(key) for key in keys[:_SHOWN]) + (", …" if len(keys) > _SHOWN else "")
        which = f"idempotency key {shown}" if len(keys) == 1 else f"one of the idempotency keys {shown}"
        outcome = "" if self.unknown else "; nothing was recorded"
        return LockTimeout(f"another transaction is using {which}{outcome}")


def name_jobs(error: DatabaseUnavailable, what: Call[Any] | Series[Any], *, unknown: bool) -> None:
    """Add to an error whether the call may have happened, and which jobs it is about."""
    error.sent, error.ids, error.keys = unknown, tuple(what.ids), what.keys
    if not error.ids or error.hint is not None:
        return
    if not error.sent:
        error.hint = "repeat the call later"
    elif len(error.ids) == 1:
        key = f", idempotency key {error.keys[0]!r}," if error.keys else ""
        error.hint = f"whether job {error.ids[0]}{key} is recorded is unknown: query it before you repeat the call"
    else:
        error.hint = f"whether these {len(error.ids)} jobs are recorded, all or none, is unknown: query one of them"


class KeyInUse(psycopg.errors.LockNotAvailable):
    """The call was not sent: its key was in use a moment ago, and another call of this process is trying."""


class BusyKeys:
    """The idempotency keys of one database that another transaction is using: one call at a time tries each.

    A call waits a moment in the database for such a key (`lock_timeout`), then it is undone and repeated. With many
    callers of one key that moment alone would keep every connection busy, and calls with other keys or none would get
    none. No lock: two threads that try at the same moment do no harm.
    """

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._trying: set[str] = set()

    @contextmanager
    def turn(self, key: str) -> Iterator[None]:
        """Wrap a try in this: raises KeyInUse instead if another call with the key is trying."""
        until = self._until.get(key)  # once: another thread may forget it at any moment
        if until is not None:
            if until >= monotonic() and key in self._trying:
                raise KeyInUse
            self._trying.add(key)
        try:
            yield
            self._until.pop(key, None)
        except psycopg.errors.LockNotAvailable:
            if len(self._until) >= 10_000:
                self._until.clear()
            self._until[key] = monotonic() + 2.0  # longer than the longest pause between two tries
            raise
        finally:
            self._trying.discard(key)


def _waited_for_key(error: psycopg.Error) -> bool:
    """Return whether it waited for a transaction that uses the same key; not, for example, for a lock of the table."""
    if isinstance(error, KeyInUse):
        return True
    place = re.search(r"\(\d+,\d+\)", error.diag.context or "")  # of a row: it waited for that row's transaction
    return isinstance(error, psycopg.errors.LockNotAvailable) and place is not None
