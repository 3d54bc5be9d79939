"""`leasehold serve`: the HTTP API."""

import contextlib
import ipaddress
import re
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from logging import INFO
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Exit, Option

from leasehold import logs
from leasehold.app import App
from leasehold.cli import completion
from leasehold.cli.options import Dsn, Schema, check_schema
from leasehold.cli.running import LogFormat, LogLevel, Verbose, load_app, put_in_place, run_async, sayer, supervised
from leasehold.errors import ConfigError
from leasehold.supervise.report_targets import SupervisorPipe, Systemd
from leasehold.supervise.supervisor import SupervisorOptions

if TYPE_CHECKING:
    from leasehold.web.visit import DemoControls

PORT = 8484
"""Where the API is served unless --port is given."""
GRACE = 10
"""Seconds that requests get to end after SIGTERM."""


def command(
    app: Annotated[
        str | None,
        Argument(
            help="Your App as module:app; the API needs no tasks, so it may be left out.",
            autocompletion=completion.apps,
        ),
    ] = None,
    *,
    host: Annotated[str, Option("--host", help="The address to serve.")] = "127.0.0.1",
    port: Annotated[int, Option("--port", help="Its port; 0: any that is free.", min=0, max=65535)] = PORT,
    workers: Annotated[int, Option("--workers", "-w", min=1, help="How many server processes.")] = 1,
    root_path: Annotated[
        str, Option("--root-path", help="Where a proxy serves it, which takes this off: /leasehold.")
    ] = "",
    access_log: Annotated[bool, Option("--access-log", help="Log every request.")] = False,
    dsn: Dsn = None,
    schema: Schema = None,
    verbose: Verbose = False,
    log_level: LogLevel = logs.Level.INFO,
    log_format: LogFormat = logs.Format.TEXT,
) -> None:
    """Serve the HTTP API until SIGTERM or Ctrl-C.

    On a loopback address tokens are needed as soon as one was made (`leasehold tokens create`); any other address, and
    any at all with LEASEHOLD_ENV=production, is served only with tokens.
    """
    pipe = SupervisorPipe.take()  # first of all: the process that started this one may have ended
    put_in_place(dsn, schema)
    # A supervisor must not wait for a standard error that is not read.
    logs.configure(logs.Level.DEBUG if verbose else log_level, log_format, background=workers > 1)
    loaded = load_app(app) if app else App()
    path = root_path.rstrip("/")
    if path and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", path):
        raise ConfigError(f"--root-path {root_path!r} is not a path", hint="write it as /leasehold")
    address = Address(host=host, port=port, production=loaded.settings.production, root_path=path)
    with contextlib.closing(loaded):
        if pipe is None:
            _check(loaded, address)
            if workers > 1:
                raise Exit(_supervise(address, workers, app))
        serve_here(loaded, address, pipe=pipe, access_log=access_log)


def serve_here(
    app: App,
    address: "Address",
    *,
    pipe: SupervisorPipe | None,
    access_log: bool = False,
    demo: "DemoControls | None" = None,
) -> None:
    """Serve in this process until SIGTERM or Ctrl-C. `pipe`: to the supervisor that started this process."""
    try:
        from leasehold.cli.serving import serve_api  # noqa: PLC0415 (comes with an extra)
    except ModuleNotFoundError as error:
        if error.name != "uvicorn":
            raise
        raise ConfigError("uvicorn is not installed", hint="pip install 'leasehold[api]'") from None
    with address.listening(shared=pipe is not None) as listener:
        if pipe is None:
            sayer(__name__)(INFO, f"serving the API on {address.url_of(listener)}")
        run_async(serve_api(app, listener, address, access_log=access_log, pipe=pipe, demo=demo))


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the API is served."""

    host: str
    port: int
    production: bool = False  # tokens are needed at any address: a proxy may serve it to the world
    root_path: str = ""  # the path that a proxy takes off before it passes a request on

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        with contextlib.suppress(ValueError):
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        return False

    @property
    def tokens(self) -> 'bool | Literal["auto"]':
        """Whether requests need a token there."""
        return "auto" if self.is_loopback and not self.production else True

    @contextlib.contextmanager
    def listening(self, *, shared: bool) -> Iterator[socket.socket]:
        """Return a listening socket; `shared` with other processes, among which the kernel spreads the connections."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            try:
                listener.bind((self.host, self.port))
                listener.listen(2048)
            except OSError as error:
                message = f"cannot serve {self.host}, port {self.port}: {error.strerror}"
                raise ConfigError(message, hint="choose another with --port") from None
            yield listener

    def url_of(self, listener: socket.socket) -> str:
        """Return the URL for a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{listener.getsockname()[1]}"


def _check(app: App, address: Address) -> None:
    """Refuse to start what could not work, or would be open to everyone."""
    database = app.database
    check_schema(database.dsn, app.settings.schema)
    if address.tokens == "auto":
        if not database.run(database.store.tokens(1)):
            open_to = "every program on this machine may do everything, and what a proxy passes on is refused"
            sayer(__name__)(INFO, f"no token was ever made: {open_to}; to ask for tokens: leasehold tokens create")
        return
    if not database.run(database.store.tokens_exist()):
        why = "LEASEHOLD_ENV is 'production'" if address.is_loopback else f"{address.host} can be reached by others"
        cure = "leasehold tokens create NAME --scope submit --scope status"
        cure += "" if address.production else ", or serve 127.0.0.1"
        raise ConfigError(f"{why}, and no token was made", hint=cure)


def _supervise(address: Address, workers: int, app: str | None) -> int:
    # The supervisor checks once that the port is free; the processes then share it.
    with address.listening(shared=False) as listener:
        port = listener.getsockname()[1]
        url = address.url_of(listener)
    sayer(__name__)(INFO, f"serving the API on {url} with {workers} processes")
    arguments = [*([app] if app else []), "--host", address.host, "--port", str(port)]
    arguments += ["--root-path", address.root_path] if address.root_path else []
    arguments += [flag for flag in ("--access-log", "--verbose", "-v") if flag in sys.argv]
    arguments += [f"--{name}={value}" for name, value in zip(("log-level", "log-format"), logs.chosen, strict=True)]
    options = SupervisorOptions(
        command=[sys.executable, "-m", "leasehold", "serve", *arguments],
        processes=workers,
        grace=GRACE,
        farewell="open requests have {grace:g} s; once more to end them now",
    )
    return supervised(options, Systemd.take())
