"""One request: who makes it, and what it can look at."""

import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from leasehold.db.call import Call
from leasehold.http.cache import Cache
from leasehold.http.ops.callers import narrowed
from leasehold.http.runtime import Runtime
from leasehold.web.demo import DemoControls
from leasehold.web.render import page
from leasehold.web.session import Visitor

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A request of somebody who may make it."""

    request: Request
    parts: Runtime
    visitor: Visitor
    cache: Cache
    demo: DemoControls | None
    now: datetime = dataclasses.field(default_factory=lambda: datetime.now(UTC))

    @property
    def store(self) -> Any:
        """The calls of the app's schema."""
        return self.parts.database.store

    @property
    def base(self) -> str:
        """The path that all of the dashboard's links begin with."""
        return str(self.request.scope.get("root_path", ""))

    @property
    def narrow(self) -> dict[str, Any]:
        """The fields of a filter that leave out what is not the visitor's business."""
        return narrowed(self.visitor.caller)

    async def ask(self, call: Call[T]) -> T:
        """The database's answer."""
        return await self.parts.database.arun(call)

    async def recall(self, name: str, seconds: float, make: Callable[[], Awaitable[T]]) -> T:
        """What was answered to an equal visitor a moment ago, or is answered now."""
        caller = self.visitor.caller
        return await self.cache.get((name, caller.queues, caller.kinds), seconds, make)

    def page(self, template: str, **context: Any) -> Response:
        """A page for this visitor."""
        return page(
            self.request, template, {"visitor": self.visitor, "now": self.now, "demo": self.demo is not None, **context}
        )

    def done(self, message: str, **more: Any) -> Response:
        """The answer to an action: what to tell, in words."""
        self.cache.clear()
        return JSONResponse({"message": message, **more}, headers={"cache-control": "no-store"})
