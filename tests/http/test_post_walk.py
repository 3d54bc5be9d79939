"""The way of POST /jobs through the code: which Python files run for a request with a token."""

import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import pytest
import uvicorn

import leasehold
from faults.waiting import until
from leasehold import App
from leasehold.http.connection import patient
from leasehold.http.settings import ApiSettings
from tests.http.conftest import intent
from tests.http.running import token_for

FOLDER = Path(leasehold.__file__).parent
MOST = 12
"""With the SQL files submit, record, 00_common and 000_facts there are 16."""


class Walk:
    """The files of this package whose functions a thread calls while `noting` is set, in the order of their calls."""

    def __init__(self) -> None:
        self.noting = False
        self.files: dict[str, None] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if self.noting and event == "call" and Path(frame.f_code.co_filename).is_relative_to(FOLDER):
            self.files.setdefault(str(Path(frame.f_code.co_filename).relative_to(FOLDER)))


@pytest.fixture
def walk(home_dsn: str) -> Iterator[tuple[Walk, str]]:
    """A server in a thread of this process."""
    settings, walk = ApiSettings(tokens=True), Walk()
    config = uvicorn.Config(
        leasehold.api(App(home_dsn), settings=settings), http=patient(settings), ws="none", log_config=None
    )
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        sys.setprofile(walk)
        server.run(sockets=[listener])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        until(lambda: server.started)
        yield walk, f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)


def test_a_submission_with_a_known_token_passes_few_files(walk: tuple[Walk, str], home_dsn: str) -> None:
    noted, url = walk
    headers = {"authorization": f"Bearer {token_for(home_dsn, 'submit')}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as http:
        for _ in range(5):
            assert http.post("/jobs", json=intent()).status_code == 202
        noted.noting = True
        assert http.post("/jobs", json=intent()).status_code == 202
        noted.noting = False
    files = list(noted.files)
    assert len(files) <= MOST, " ".join(files)
