"""What operations work on, blocking or on an event loop."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from leasehold.db.call import Call
from leasehold.db.database import Database
from leasehold.db.store import Store
from leasehold.operate.caller import Caller

P = ParamSpec("P")
T = TypeVar("T")

Operation: TypeAlias = Callable[Concatenate["Operator", P], Coroutine[Any, Any, T]]


@dataclass(frozen=True, slots=True)
class Operator:
    """A database as one caller may see and change it."""

    database: Database
    caller: Caller
    blocking: bool = False

    @property
    def store(self) -> Store:
        """The calls of the database."""
        return self.database.store

    async def ask(self, call: Call[T]) -> T:
        """Carry out a call."""
        return await self.database.execute(call, blocking=self.blocking)
