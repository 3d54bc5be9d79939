"""What the API's routes work with: made at the first request, because a mounted application is not told to start."""

import asyncio
from typing import Any

from starlette.requests import Request

from leasehold.app import App
from leasehold.db.pool import Database
from leasehold.http.auth import Gate
from leasehold.http.cache import Cache
from leasehold.http.settings import ApiSettings
from leasehold.http.submitter import Submitter
from leasehold.http.waiting import Watcher


class Runtime:
    """The parts of one event loop."""

    def __init__(self, app: App, database: Database, submissions: Database, settings: ApiSettings) -> None:
        self.app = app
        self.settings = settings
        self.database = database
        """For everything but submissions. A call is answered, or given up, within `settings.database_seconds`."""
        self.gate = Gate(database, settings)
        self.watcher = Watcher(database, settings)
        self.submitter = Submitter(submissions, settings)
        self.readiness = Cache()
        self.loop = asyncio.get_running_loop()


class Holder:
    """Makes a runtime when one is needed, and ends it when told to. Can be used again afterwards."""

    def __init__(self, app: App, settings: ApiSettings, meter: Any) -> None:
        self.app = app
        self.settings = settings
        self.meter = meter
        """Counts the requests of all event loops."""
        self._runtime: Runtime | None = None
        self._databases: tuple[Database, Database] | None = None

    async def runtime(self) -> Runtime:
        """The parts of the running event loop."""
        runtime = self._runtime
        if runtime is not None and runtime.loop is asyncio.get_running_loop():
            return runtime
        # An embedded server is started off this loop; the others who ask meanwhile wait for the same one.
        main = await self.app.adatabase()
        return self._runtime if self._is_current() else self._start(main)  # type: ignore[return-value]

    def _is_current(self) -> bool:
        return self._runtime is not None and self._runtime.loop is asyncio.get_running_loop()

    def _start(self, main: Database) -> Runtime:
        if self._databases is None:
            options: dict[str, Any] = {
                "schema": self.app.settings.schema,
                "prepare": self.app.settings.prepare,
                "wait": self.settings.database_seconds,
                "bounded": True,
            }
            self._databases = Database(main.dsn, **options), Database(main.dsn, **options)
        self._runtime = Runtime(self.app, *self._databases, self.settings)
        return self._runtime

    def stop_waiting(self) -> None:
        """This server is about to stop: end long polls and event streams, so that nobody has to be cut off."""
        if self._runtime is not None:
            self._runtime.watcher.close()

    async def aclose(self) -> None:
        """End what is under way and close the connections. The app's own are the app's to close."""
        runtime, self._runtime = self._runtime, None
        databases, self._databases = self._databases, None
        if runtime is not None and runtime.loop is asyncio.get_running_loop():
            runtime.watcher.close()
            await runtime.submitter.close()
        for database in databases or ():
            # Closing says the last hints, which takes a moment.
            await asyncio.to_thread(database.close)


async def runtime(request: Request) -> Runtime:
    """What the routes work with."""
    return await request.app.state.leasehold.runtime()  # type: ignore[no-any-return]
