"""Real servers on real sockets, in a thread of the test's own process: they start in a moment."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

import leasehold
from faults.waiting import until
from leasehold import App
from leasehold.http.connection import patient
from leasehold.http.settings import ApiSettings
from leasehold.web.visit import DemoControls


@dataclass(frozen=True)
class Site:
    """A running server with a dashboard."""

    dsn: str
    url: str

    def page(self, path: str = "/") -> str:
        return f"{self.url}/dashboard{path}"


@contextmanager
def serving(dsn: str, *, demo: DemoControls | None = None, **settings: Any) -> Iterator[Site]:
    """Serve until the block ends."""
    # A call that a busy machine delays is no fault of the page.
    chosen = ApiSettings(**{"tokens": "auto", "database_seconds": 30, **settings})
    with App(dsn=dsn) as app:
        api = leasehold.api(app, settings=chosen, demo=demo)
        config = uvicorn.Config(
            api, host="127.0.0.1", port=0, http=patient(chosen), ws="none", lifespan="on", log_config=None,
            timeout_graceful_shutdown=5,
        )  # fmt: skip
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        try:
            until(lambda: server.started or not thread.is_alive(), "the server starts")
            assert server.started, "the server does not start"
            port = server.servers[0].sockets[0].getsockname()[1]
            yield Site(dsn, f"http://127.0.0.1:{port}")
        finally:
            api.state.leasehold.stop_waiting()
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive(), "the server does not end"
