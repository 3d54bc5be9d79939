"""`leasehold serve`: the HTTP API."""

import asyncio
import contextlib
import ipaddress
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from leasehold import logs
from leasehold.app import App
from leasehold.cli import completion
from leasehold.cli.connected import say_if_standby
from leasehold.cli.console import say
from leasehold.cli.ending import supervised
from leasehold.cli.loading import load_app
from leasehold.cli.log_options import LogFormat, LogLevel
from leasehold.cli.worker import run_async
from leasehold.db.migrate import check
from leasehold.demo.controls import Controls
from leasehold.errors import ConfigError
from leasehold.supervise.supervisor import Supervisor, SupervisorOptions
from leasehold.supervise.systemd import Systemd
from leasehold.supervise.tether import Tether

if TYPE_CHECKING:
    from leasehold.cli.serving import ServerProcess

PORT = 8484
"""Where the API is served when nothing else is said."""

GRACE = 10
"""Seconds that requests get to end after SIGTERM."""


def command(
    app: Annotated[
        str | None,
        typer.Argument(
            help="Your App as module:app; the API needs no tasks, so it may be left out.",
            autocompletion=completion.apps,
        ),
    ] = None,
    *,
    host: Annotated[str, typer.Option("--host", help="The address to serve.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Its port; 0: any that is free.", min=0, max=65535)] = PORT,
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, help="How many server processes.")] = 1,
    root_path: Annotated[
        str, typer.Option("--root-path", help="Where a proxy serves it, which takes this off: /leasehold.")
    ] = "",
    access_log: Annotated[bool, typer.Option("--access-log", help="Log every request.")] = False,
    dsn: Annotated[str | None, typer.Option("--dsn", help="The database; LEASEHOLD_DSN when left out.")] = None,
    schema: Annotated[str | None, typer.Option("--schema", help="Its schema; LEASEHOLD_SCHEMA when left out.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more: --log-level debug.")] = False,
    log_level: LogLevel = logs.Level.INFO,
    log_format: LogFormat = logs.Format.TEXT,
) -> None:
    """Serve the HTTP API until SIGTERM or Ctrl-C.

    On a loopback address tokens are needed as soon as one was made (`leasehold tokens create`); any other address, and
    any at all with LEASEHOLD_ENV=production, is served only with tokens.
    """
    tether = Tether.take()  # first of all: whoever started us may be gone already
    if dsn:
        os.environ["LEASEHOLD_DSN"] = dsn
    if schema:
        os.environ["LEASEHOLD_SCHEMA"] = schema
    logs.configure(logs.Level.DEBUG if verbose else log_level, log_format)
    loaded = load_app(app) if app else App()
    place = Place(host=host, port=port, production=loaded.settings.production, root_path=checked_root_path(root_path))
    with contextlib.closing(loaded):
        if tether is None:
            _check(loaded, place)
            if workers > 1:
                raise typer.Exit(_supervise(place, workers, app))
        with place.listening(shared=tether is not None) as listener:
            if tether is None:
                say(f"serving the API on {place.url_of(listener)}")
            run_async(_process(loaded, listener, place, access_log=access_log, tether=tether).run())


def _process(
    app: App, listener: socket.socket, place: "Place", *, access_log: bool, tether: Tether | None
) -> "ServerProcess":
    try:
        from leasehold.cli.serving import ServerProcess  # noqa: PLC0415 (an extra that not everybody installs)
    except ModuleNotFoundError as error:
        if error.name != "uvicorn":
            raise
        raise ConfigError("uvicorn is not installed", hint="pip install 'leasehold[api]'") from None
    return ServerProcess(
        app,
        listener,
        tokens=place.tokens,
        access_log=access_log,
        tether=tether,
        grace=GRACE,
        demo=Controls.from_env(),
        root_path=place.root_path,
    )


def checked_root_path(text: str) -> str:
    """The path that a proxy takes off, without a slash at its end."""
    path = text.rstrip("/")
    if path and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", path):
        raise ConfigError(f"--root-path {text!r} is not a path", hint="write it as /leasehold")
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the API is served."""

    host: str
    port: int
    production: bool = False
    """Other people's jobs are at stake, whatever the address: a proxy may serve it to the world."""

    root_path: str = ""
    """The path that a proxy takes off before it passes a request on."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return False

    @property
    def tokens(self) -> 'bool | Literal["auto"]':
        """Whether requests need a token there."""
        return "auto" if self.is_loopback and not self.production else True

    @contextlib.contextmanager
    def listening(self, *, shared: bool) -> Iterator[socket.socket]:
        """A listening socket; `shared` with other processes, among which the kernel spreads the connections."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            try:
                listener.bind((self.host, self.port))
                listener.listen(2048)
            except OSError as error:
                raise ConfigError(
                    f"cannot serve {self.host}, port {self.port}: {error.strerror}", hint="choose another with --port"
                ) from None
            yield listener

    def url_of(self, listener: socket.socket) -> str:
        """What to put into a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{listener.getsockname()[1]}"


def _check(app: App, place: Place) -> None:
    """Refuse to start what could not work, or would be open to everybody."""
    database = app.database
    say_if_standby(check(database.dsn, schema=app.settings.schema))
    if place.tokens == "auto":
        if not database.run(database.store.tokens(1)):
            say(
                "no token was ever made: every program on this machine may do everything, "
                "and what a proxy passes on is refused; to ask for tokens: leasehold tokens create"
            )
        return
    if not database.run(database.store.tokens_exist()):
        why = "LEASEHOLD_ENV is 'production'" if place.is_loopback else f"{place.host} can be reached by others"
        cure = "leasehold tokens create NAME --scope submit --scope status"
        cure += "" if place.production else ", or serve 127.0.0.1"
        raise ConfigError(f"{why}, and no token was made", hint=cure)


def _supervise(place: Place, workers: int, app: str | None) -> int:
    # Whether the port is free is found out here, once; the processes then share it.
    with place.listening(shared=False) as listener:
        port = listener.getsockname()[1]
        url = place.url_of(listener)
    say(f"serving the API on {url} with {workers} processes")
    arguments = [*([app] if app else []), "--host", place.host, "--port", str(port)]
    arguments += ["--root-path", place.root_path] if place.root_path else []
    flags: list[str] = [flag for flag in ("--access-log", "--verbose", "-v") if flag in sys.argv]
    flags += [f"--{name}={value}" for name, value in zip(("log-level", "log-format"), logs.chosen(), strict=True)]
    options = SupervisorOptions(
        command=[sys.executable, "-m", "leasehold", "serve", *arguments, *flags],
        processes=workers,
        grace=GRACE,
        farewell="open requests have {grace:g} s; once more to end them now",
    )

    async def run(say: Callable[[str], None]) -> int:
        return await Supervisor(options, systemd=Systemd.take(), say=say).run()

    return supervised(lambda say: asyncio.run(run(say)))
