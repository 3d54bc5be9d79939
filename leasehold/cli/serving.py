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
from leasehold import collector
from leasehold.app import App
from leasehold.http.connection import patient
from leasehold.http.front import naming_requests
from leasehold.http.settings import ApiSettings, Tokens
from leasehold.supervise.tether import Tether
from leasehold.web.demo import DemoControls

_BEAT = 1.0
"""Seconds between signs of life to the supervisor."""


class _Server(uvicorn.Server):
    """Ends long polls and event streams when it is told to stop, instead of waiting for them."""

    def __init__(self, config: uvicorn.Config, api: Any) -> None:
        super().__init__(config)
        self._api = api

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle them and be done: uvicorn's own way raises them again at the end, and a good end is 0."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._api.state.leasehold.stop_waiting()
        super().handle_exit(sig, frame)


class ServerProcess:
    """One server process."""

    def __init__(
        self,
        app: App,
        listener: socket.socket,
        *,
        tokens: Tokens,
        access_log: bool = False,
        tether: Tether | None = None,
        grace: int = 10,
        demo: DemoControls | None = None,
        root_path: str = "",
    ) -> None:
        self._listener = listener
        self._tether = tether
        settings = ApiSettings.from_env(tokens=tokens)
        api = leasehold.api(app, settings=settings, demo=demo)
        config = uvicorn.Config(
            api, http=patient(settings), ws="none", lifespan="on", access_log=access_log, server_header=False,
            proxy_headers=False, log_config=None, timeout_graceful_shutdown=grace, timeout_keep_alive=30, backlog=2048,
            root_path=root_path,
        )  # fmt: skip
        self._server = _Server(config, api)

    async def run(self) -> None:
        """Serve until told to stop."""
        collector.settle()
        logging.setLogRecordFactory(naming_requests(logging.getLogRecordFactory()))
        beating = asyncio.create_task(self._beat())
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            beating.cancel()

    async def _beat(self) -> None:
        while self._tether is not None:
            state = "working" if self._server.started else "starting"
            alive = self._tether.send(
                {"worker": None, "pid": os.getpid(), "state": state, "running": 0, "slots": 0, "finished": 0}
            )
            if not alive:
                os.kill(os.getpid(), signal.SIGTERM)
                return
            await asyncio.sleep(_BEAT if self._server.started else 0.05)
