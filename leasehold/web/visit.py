"""One request to the dashboard, and what its page is made of."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ParamSpec, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from leasehold.errors import LeaseholdError
from leasehold.http.cache import Cache
from leasehold.http.problems import Problem
from leasehold.http.runtime import Runtime
from leasehold.operate.caller import Caller
from leasehold.operate.operator import Operation, Operator
from leasehold.web.render import page
from leasehold.web.session import check_csrf

P = ParamSpec("P")
T = TypeVar("T")

MOMENT = 1.0
"""Seconds for which most answers are shared by all equal visitors."""


class DemoControls(Protocol):
    """What a demo adds to the dashboard. Both methods are called in a thread and may block."""

    def scoreboard(self) -> dict[str, Any]:
        """Return names and figures in the order to be shown, such as {"jobs lost": 0, "done": 812, "kills": 3}."""

    def kill(self) -> dict[str, Any]:
        """Kill one worker with SIGKILL, and return which: {"worker": "…", "pid": 4711}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A request that was admitted."""

    request: Request
    parts: Runtime
    caller: Caller
    cache: Cache
    demo: DemoControls | None
    csrf: str  # the value that the browser's writes have to carry
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def read_only(self) -> bool:
        """Whether the dashboard is read-only, whatever the token allows."""
        return self.parts.settings.dashboard == "read-only"

    @property
    def may_write(self) -> bool:
        """Whether controls are shown, and obeyed."""
        return "operate" in self.caller.scopes and not self.read_only

    def check_write(self) -> None:
        """Refuse what this visitor may not do, and what another site made the browser send."""
        check_csrf(self.request)
        if self.read_only:
            raise Problem("forbidden", "this dashboard is read-only")
        if not self.may_write:
            raise Problem("forbidden", "this needs a token with the scope operate")

    async def run(self, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Carry out an operation for this visitor."""
        return await operation(Operator(self.parts.database, self.caller), *args, **kwargs)

    async def recall(self, name: Any, seconds: float, make: Callable[[], Awaitable[T]]) -> T:
        """Return what was answered to an equal visitor in the last seconds, or make it now."""
        caller = self.caller
        return await self.cache.get((name, caller.queues, caller.kinds, caller.sees_content), seconds, make)

    async def recent(self, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what an operation has returned to an equal visitor a moment ago, or returns now."""
        name = (operation, args, tuple(kwargs.items()))
        return await self.recall(name, MOMENT, lambda: self.run(operation, *args, **kwargs))

    async def if_allowed(self, seconds: float, operation: Operation[[], T]) -> T | None:
        """Return what an operation on everything returns; None: not for this visitor, or not available now."""
        if self.caller.restricted:
            return None
        try:
            return await self.recall(operation, seconds, lambda: self.run(operation))
        except LeaseholdError:
            return None

    def page(self, template: str, **context: Any) -> Response:
        """Return a page for this visitor."""
        return page(self.request, template, {"visit": self, **context})

    def done(self, message: str, **more: Any) -> Response:
        """Return the answer to an action, in words."""
        self.cache.clear()
        return JSONResponse({"message": message, **more}, headers={"cache-control": "no-store"})
