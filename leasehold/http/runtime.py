"""What the API's operations work with. Made at the first request: a mounted application has no start of its own."""

import asyncio

from leasehold.app import App
from leasehold.db.database import Database
from leasehold.http.auth import Gate
from leasehold.http.cache import Cache
from leasehold.http.front import Meter
from leasehold.http.settings import ApiSettings
from leasehold.http.submitter import Submitter
from leasehold.http.waiting import Watcher


class Runtime:
    """The parts of one event loop."""

    def __init__(self, app: App, database: Database, submissions: Database, settings: ApiSettings) -> None:
        """`database`: for everything but submissions. A call ends within `settings.database_seconds`."""
        self.app = app
        self.settings = settings
        self.database = database
        self.gate = Gate(database, settings)
        self.watcher = Watcher(database, settings)
        self.submitter = Submitter(submissions, settings)
        self.readiness = Cache()
        self.loop = asyncio.get_running_loop()


class Holder:
    """Makes a runtime when one is needed, and closes it. Can be used again afterwards."""

    def __init__(self, app: App, settings: ApiSettings, meter: Meter) -> None:
        self.app = app
        self.settings = settings
        self.meter = meter
        """Counts the requests of all event loops."""
        self.current: Runtime | None = None
        """That of the latest event loop."""
        self._databases: tuple[Database, Database] | None = None

    async def runtime(self) -> Runtime:
        """Return the parts of the running event loop."""
        loop = asyncio.get_running_loop()
        if self.current is None or self.current.loop is not loop:
            # An embedded server is started in a thread; all requests that come meanwhile wait for the same one.
            main = await self.app.adatabase()
            if self.current is None or self.current.loop is not loop:
                self._databases = self._databases or (self._database(main.dsn), self._database(main.dsn))
                self.current = Runtime(self.app, *self._databases, self.settings)
        return self.current

    def _database(self, dsn: str) -> Database:
        known, seconds = self.app.settings, self.settings.database_seconds
        return Database(dsn, schema=known.schema, prepare=known.prepare, bounded=True, wait=seconds)

    def stop_waiting(self) -> None:
        """End long polls and event streams: this server is about to stop."""
        if self.current is not None:
            self.current.watcher.close()

    async def aclose(self) -> None:
        """Wait for the statements under way and close the connections. The app's own stay open."""
        runtime, self.current = self.current, None
        databases, self._databases = self._databases, None
        if runtime is not None and runtime.loop is asyncio.get_running_loop():
            runtime.watcher.close()
            await runtime.submitter.close()
        for database in databases or ():
            # Closing sends the last notifications, which takes a moment.
            await asyncio.to_thread(database.close)
