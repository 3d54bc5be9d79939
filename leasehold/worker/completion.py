"""Finishing a job inside its task's own transaction."""

from typing import Any

from leasehold.db.call import Call
from leasehold.db.foreign import arun_on, run_on
from leasehold.db.store import Store, Token
from leasehold.errors import LeaseLost
from leasehold.task import Task


class CompleteIn:
    """Completes one attempt on a connection of the task's own; the same fenced statement as the finisher's.

    The worker reports the outcome afterwards all the same: a repeated finish with the right token changes nothing, and
    if the transaction was rolled back after all, the outcome is what the task made of that.
    """

    def __init__(self, worker: str, store: Store, task: Task[..., Any], token: Token) -> None:
        self._worker = worker
        self._store = store
        self._task = task
        self._token = token

    def run(self, connection: object, result: object) -> None:
        """Complete from a thread."""
        self._check(run_on(connection, self._call(result)))

    async def arun(self, connection: object, result: object) -> None:
        """Complete from a coroutine."""
        self._check(await arun_on(connection, self._call(result)))

    def _call(self, result: object) -> Call[bool]:
        return self._store.complete_in(self._worker, self._token, self._task.result.encode(result))

    def _check(self, counts: bool) -> None:
        if not counts:
            raise LeaseLost(
                f"job {self._token.id}: attempt {self._token.attempt} no longer owns it",
                hint="roll back; somebody else runs it, or it was cancelled",
            )
