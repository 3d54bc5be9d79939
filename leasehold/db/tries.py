"""How often a call of the pool is sent, until when, and how long each answer is waited for."""

import time
from typing import Any

import psycopg

from leasehold.db.call import Call, Series
from leasehold.db.cut import CutOff, ThreadCutOff
from leasehold.db.link import Backoff
from leasehold.db.sqlstates import certainly_undone, meaning_of, trouble_of
from leasehold.errors import DatabaseUnavailable, LockTimeout


class Tries:
    """The tries of one call. `answer`: seconds for each answer; None: until the deadline of the whole."""

    def __init__(
        self, what: Call[Any] | Series[Any], *, wait: float, deadline: float | None, answer: float | None
    ) -> None:
        self._what = what
        self._wait = wait
        self._answer = answer
        self.deadline = time.monotonic() + wait if deadline is None else deadline
        """Until when it may be sent again, by the monotonic clock."""
        self.unknown = False
        """Whether it may have happened."""
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
            raise DatabaseUnavailable(
                f"no answer from PostgreSQL within {self._answer:g} s; the connection was given up"
            ) from error
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
        if isinstance(meaning, DatabaseUnavailable):
            meaning.sent = self.unknown
        if not again or time.monotonic() >= deadline:
            raise meaning from error
