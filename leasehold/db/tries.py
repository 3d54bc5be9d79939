"""How often a call of the pool is sent, until when, and how long each answer is waited for."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from leasehold.db.busykeys import KeyInUse
from leasehold.db.call import Call, Series
from leasehold.db.cut import CutOff, ThreadCutOff
from leasehold.db.link import Backoff
from leasehold.db.sqlstates import certainly_undone, meaning_of, trouble_of
from leasehold.errors import DatabaseUnavailable, LockTimeout

_ROW: Final = re.compile(r"\(\d+,\d+\)")
"""The place of a row, in what the server says of the moment of an error: it waited for that row's transaction."""

_SHOWN: Final = 3


class Tries:
    """The tries of one call. `answer`: seconds for each answer; None: until the deadline of the whole."""

    def __init__(
        self, what: Call[Any] | Series[Any], *, wait: float, deadline: float | None, answer: float | None
    ) -> None:
        self._what = what
        self._wait = wait
        self._answer = answer
        self._begun = time.monotonic()
        self.deadline = self._begun + wait if deadline is None else deadline
        """Until when it may be sent again, by the monotonic clock."""
        self.unknown = False
        """Whether it may have happened."""
        self.locked = False
        """Whether the last try was undone because another transaction is using a key of it."""
        self._given_up = False
        self._backoff: Backoff | None = None

    def of_coroutine(self, connection: psycopg.AsyncConnection) -> CutOff:
        """The end of the next try."""
        cut = CutOff(connection, self._end())
        self._follow(cut)
        return cut

    def of_thread(self, connection: psycopg.Connection) -> ThreadCutOff:
        """The end of the next try."""
        cut = ThreadCutOff(connection, self._end())
        self._follow(cut)
        return cut

    def _end(self) -> float:
        return self.deadline if self._answer is None else time.monotonic() + self._answer

    def _follow(self, cut: CutOff | ThreadCutOff) -> None:
        """Of many calls each has its time: a program may take long to make the next one."""
        if isinstance(self._what, Series) and self._answer is not None:
            self._what.on_call = lambda: cut.move(self._end())

    def failed(self, error: psycopg.Error, cut: CutOff | ThreadCutOff | None) -> float:
        """Seconds until it is to be sent again; or raise what the error means. No `cut`: it was not sent."""
        self.unknown = self.unknown or (cut is not None and not certainly_undone(error))
        self.locked = _waited_for_key(error) and bool(self._what.keys)
        if self.locked and self._answer is not None:
            self.deadline = max(self.deadline, self._begun + self._answer)
        if cut is not None and cut.fired and self._answer is not None:
            self._once_more(error)
        if self._backoff is None:
            self._backoff = Backoff(first=0.02, longest=0.5)
        pause = self._backoff.pause()
        # A try that begins when the time is over would only be cut off, with its outcome unknown.
        self._raise_unless_repeatable(error, self.deadline - pause)
        return pause

    def _once_more(self, error: psycopg.Error) -> None:
        """A try was given up: the connection may stand still where another does not. One more, if that is allowed."""
        if self._given_up or not self._what.repeatable:
            given_up = DatabaseUnavailable(
                f"no answer from PostgreSQL within {self._answer:g} s; the connection was given up"
            )
            self.name(given_up)
            raise given_up from error
        self._given_up = True
        self.deadline = time.monotonic() + self._wait

    def _raise_unless_repeatable(self, error: psycopg.Error, deadline: float) -> None:
        divisible = isinstance(self._what, Call) and self._what.divisible
        meaning = trouble_of(error) if divisible else meaning_of(error)
        if meaning is None:
            raise error
        again = isinstance(meaning, DatabaseUnavailable) and (self._what.repeatable or certainly_undone(error))
        if divisible and isinstance(meaning, LockTimeout):
            again = False
        if again and time.monotonic() < deadline:
            return
        if self.locked:
            meaning = self._key_in_use()
        if isinstance(meaning, DatabaseUnavailable):
            self.name(meaning)
        raise meaning from error

    def _key_in_use(self) -> LockTimeout:
        keys = self._what.keys
        shown = ", ".join(repr(key) for key in keys[:_SHOWN]) + (", …" if len(keys) > _SHOWN else "")
        which = f"idempotency key {shown}" if len(keys) == 1 else f"one of the idempotency keys {shown}"
        outcome = "" if self.unknown else "; nothing was recorded"
        return LockTimeout(f"another transaction is using {which}{outcome}")

    def name(self, error: DatabaseUnavailable) -> None:
        """Say in an error whether the call may have happened, and which jobs it is about."""
        error.sent = self.unknown
        error.ids, error.keys = tuple(self._what.ids), self._what.keys
        if not error.ids or error.hint is not None:
            return
        if not error.sent:
            error.hint = "repeat the call later"
        elif len(error.ids) == 1:
            key = f", idempotency key {error.keys[0]!r}," if error.keys else ""
            error.hint = f"whether job {error.ids[0]}{key} is recorded is unknown: look before you repeat it"
        else:
            error.hint = f"whether these {len(error.ids)} jobs are recorded, all or none, is unknown: look one up"


@contextmanager
def nothing_sent() -> Iterator[None]:
    """Around what is asked before a call: if it fails, the call was not sent."""
    try:
        yield
    except DatabaseUnavailable as error:
        error.sent = False
        raise


def _waited_for_key(error: psycopg.Error) -> bool:
    """Whether a transaction that uses the same key was in the way; not, for example, a lock of the whole table."""
    if isinstance(error, KeyInUse):
        return True
    return isinstance(error, psycopg.errors.LockNotAvailable) and bool(_ROW.search(error.diag.context or ""))
