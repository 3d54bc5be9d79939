"""One server process: uvicorn with the API."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn

import leasehold
from leasehold._os_process import settle_collector
from leasehold.app import App
from leasehold.cli.serve import GRACE, Address
from leasehold.http.connection import patient
from leasehold.http.front import naming_requests
from leasehold.http.settings import ApiSettings
from leasehold.supervise.report_targets import SupervisorPipe
from leasehold.web.visit import DemoControls


class _Server(uvicorn.Server):
    """Ends long polls and event streams when it has to stop, instead of waiting for them."""

    def __init__(self, config: uvicorn.Config, api: Any) -> None:
        super().__init__(config)
        self._api = api

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals without raising them again at the end, as uvicorn does: an orderly end exits with 0."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._api.state.leasehold.stop_waiting()
        super().handle_exit(sig, frame)


async def serve_api(
    app: App,
    listener: socket.socket,
    address: Address,
    *,
    access_log: bool,
    pipe: SupervisorPipe | None,
    demo: DemoControls | None,
) -> None:
    """Serve the API in this process until SIGTERM or SIGINT."""
    settings = ApiSettings.from_env(tokens=address.tokens)
    api = leasehold.api(app, settings=settings, demo=demo)
    config = uvicorn.Config(
        api, http=patient(settings), ws="none", lifespan="on", access_log=access_log, server_header=False,
        proxy_headers=False, log_config=None, timeout_graceful_shutdown=GRACE, timeout_keep_alive=30, backlog=2048,
        root_path=address.root_path,
    )  # fmt: skip
    server = _Server(config, api)
    settle_collector()
    logging.setLogRecordFactory(naming_requests(logging.getLogRecordFactory()))
    beating = asyncio.create_task(_beat(server, pipe))
    try:
        await server.serve(sockets=[listener])
    finally:
        beating.cancel()


async def _beat(server: _Server, pipe: SupervisorPipe | None) -> None:
    report = {"worker": None, "pid": os.getpid(), "running": 0, "slots": 0, "finished": 0}
    while pipe is not None:
        if not pipe.send(report | {"state": "working" if server.started else "starting"}):
            os.kill(os.getpid(), signal.SIGTERM)
            return
        await asyncio.sleep(1.0 if server.started else 0.05)
