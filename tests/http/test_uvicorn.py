"""Which undocumented parts of uvicorn the server uses: a release of uvicorn that changes one fails here first."""

import ast
import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path

import uvicorn
from packaging.requirements import Requirement
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from leasehold.cli import serving
from leasehold.http.connection import PatientProtocol, _ClosingTransport

ROOT = Path(__file__).parents[2]

PROTOCOL = {
    "cycle", "expect_100_continue", "flow", "headers", "loop", "parser", "pipeline", "transport",
}  # fmt: skip
"""Attributes of the protocol that `connection.py` reads or sets."""

CALLBACKS = {
    "connection_lost", "connection_made", "data_received", "eof_received", "on_body", "on_header",
    "on_headers_complete", "on_message_begin", "on_message_complete", "on_response_complete", "pause_writing",
    "resume_writing", "send_400_response", "shutdown", "timeout_keep_alive_handler",
}  # fmt: skip
"""Methods of the protocol that `connection.py` overrides."""

CYCLE = {
    "chunked_encoding", "disconnected", "keep_alive", "message_event", "more_body", "response_complete",
    "response_started",
}  # fmt: skip
"""Attributes of the request that is being answered."""

TRANSPORT = {"abort", "close", "get_extra_info", "is_closing", "set_protocol", "write"}
"""What uvicorn calls on the transport, whose place `_ClosingTransport` takes."""

SERVER = {"capture_signals", "handle_exit", "started"}
"""Of `uvicorn.Server`."""


def attributes_of(code: object, owner: str) -> set[str]:
    """The names of the attributes that the source takes from a variable."""
    tree = ast.parse(inspect.getsource(code))  # type: ignore[arg-type]
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == owner
    }


def transport_calls(code: object) -> set[str]:
    tree = ast.parse(inspect.getsource(code))  # type: ignore[arg-type]
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "transport"
    }


def named(cls: type) -> set[str]:
    """Return what the class itself defines, without what every class has."""
    return {name for name in vars(cls) if not name.startswith("__")}


def test_the_installed_release_is_one_that_pyproject_allows_and_the_next_is_not() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (allowed,) = (one.specifier for one in map(Requirement, extras["api"]) if one.name == "uvicorn")
    installed = version("uvicorn")
    assert installed in allowed
    major, minor, *_ = installed.split(".")
    assert f"{major}.{int(minor) + 1}.0" not in allowed
    assert f"uvicorn=={installed}" in (ROOT / "constraints.txt").read_text().split()


def test_the_protocol_has_what_we_use_and_we_use_nothing_else() -> None:
    own = named(PatientProtocol) | set(PatientProtocol.__annotations__)
    assert attributes_of(PatientProtocol, "self") - own == PROTOCOL
    assert own & named(HttpToolsProtocol) == CALLBACKS
    assert set(HttpToolsProtocol.__init__.__code__.co_names) >= PROTOCOL
    assert httptools_impl.STATUS_LINE[431].startswith(b"HTTP/1.1 431 ")


def test_the_cycle_has_what_we_use_and_we_use_nothing_else() -> None:
    used = attributes_of(PatientProtocol, "cycle") | {"response_complete"}
    assert used == CYCLE
    assert set(RequestResponseCycle.__init__.__code__.co_names) >= CYCLE


def test_the_transport_that_we_put_in_place_has_all_that_is_called() -> None:
    assert transport_calls(HttpToolsProtocol) | transport_calls(RequestResponseCycle) <= TRANSPORT
    assert set(vars(_ClosingTransport)) | set(_ClosingTransport.__init__.__code__.co_names) >= TRANSPORT


def test_the_server_has_what_we_override() -> None:
    assert named(serving._Server) & named(uvicorn.Server) == SERVER - {"started"}
    assert "started" in uvicorn.Server.__init__.__code__.co_names
