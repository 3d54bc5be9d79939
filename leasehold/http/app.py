"""The API as an application: `leasehold.api(app)` to mount, `leasehold serve` to run."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.types import ASGIApp

from leasehold.app import App
from leasehold.http import jobs, ops, process, submissions
from leasehold.http.front import Answer, Front, Meter, Operation, Problems, Table
from leasehold.http.openapi import document
from leasehold.http.runtime import Holder
from leasehold.http.settings import ApiSettings, Tokens


class Api(Starlette):
    """Our operations, and Starlette's routes for what is attached, such as the dashboard.

    The lifespan of a mounted application is not run: this one starts at its first request, and
    `await api.state.leasehold.aclose()` closes its connections.
    """

    def __init__(self, app: App, *, tokens: Tokens | None, settings: ApiSettings | None) -> None:
        settings = settings or ApiSettings()
        holder = Holder(app, settings if tokens is None else replace(settings, tokens=tokens), Meter())

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            try:
                yield
            finally:
                await holder.aclose()

        super().__init__(lifespan=lifespan)
        self.router.redirect_slashes = False  # one spelling of each path; a redirected POST would lose its body
        self.state.leasehold = holder
        described = Operation(method="GET", path="/openapi.json", endpoint=self._describe, name="", answers={})
        modules = (submissions, jobs, process, ops)
        self._operations = [*(operation for module in modules for operation in module.OPERATIONS), described]
        self._document: dict[str, Any] = {}

    def build_middleware_stack(self) -> ASGIApp:
        """Return the application in the users' middlewares, which see every request and response."""
        app: ASGIApp = Table(self._operations, self.router)
        if self.user_middleware:
            app = Problems(app)  # below the users' middlewares, which then see problems
            for cls, args, kwargs in reversed(self.user_middleware):
                app = cls(app, *args, **kwargs)
        return Front(app, self.state.leasehold.meter)

    def openapi(self) -> dict[str, Any]:
        """Return the API's description."""
        self._document = self._document or document(self._operations)
        return self._document

    async def _describe(self, request: Request) -> Answer:
        root = request.scope.get("root_path", "")
        servers = {"servers": [{"url": root}]} if root else {}
        return Answer(200, json.dumps({**self.openapi(), **servers}).encode())
