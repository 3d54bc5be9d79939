"""What commands share that run for long: the app, settings and logs, the event loop, a supervisor, a sure end."""

import asyncio
import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from typer import Option

from leasehold import logs
from leasehold._importing import discover, importing
from leasehold._logger import logger_of
from leasehold._texts import many_lines
from leasehold.app import App
from leasehold.cli.console import say
from leasehold.errors import ConfigError
from leasehold.supervise.report_targets import Systemd
from leasehold.supervise.signals import within
from leasehold.supervise.supervisor import Supervisor, SupervisorOptions

T = TypeVar("T")

Verbose = Annotated[bool, Option("--verbose", "-v", help="Log more: --log-level debug.")]
LogLevel = Annotated[
    logs.Level, Option("--log-level", envvar="LEASEHOLD_LOG_LEVEL", help="What is important enough to be logged.")
]
LogFormat = Annotated[
    logs.Format, Option("--log-format", envvar="LEASEHOLD_LOG_FORMAT", help="Lines for people, or JSON.")
]
Seconds = Annotated[float, Option("--for", min=0, help="Stop by itself after so many seconds; 0: never.")]

_LAST_LINES: Final = 0.5
"""Seconds for what is to be written before the process ends."""


def put_in_place(dsn: str | None, schema: str | None) -> None:
    """Set the environment, from which a user's module takes its settings when it is imported."""
    given = {"LEASEHOLD_DSN": dsn, "LEASEHOLD_SCHEMA": schema}
    os.environ.update({name: value for name, value in given.items() if value})


def load_app(name: str) -> App:
    """Import the app. Whatever the user's own module raises is the user's to see."""
    module_name, _, attribute = name.partition(":")
    if not module_name:
        raise ConfigError(f"app {name!r} names no module", hint="write it as module:app")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigError(f"{module_name!r} is not the name of a module", hint="write it as package.module:app")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with importing(module_name):
            module = importlib.import_module(module_name)
            # The modules called `tasks` of a package: the app may be in one of them.
            more = discover(module) if hasattr(module, "__path__") else []
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # something that the module itself wants
        raise ConfigError(f"no module named {error.name!r}", hint=f"looked from {here}; is it spelt right?") from None
    if attribute:
        app = getattr(module, attribute, None)
        if not isinstance(app, App):
            raise ConfigError(f"{module_name} has no App named {attribute!r}", hint=_known(vars(module)))
        return app
    everything = [value for where in (module_name, *more) for value in vars(sys.modules[where]).values()]
    apps = {id(value): value for value in everything if isinstance(value, App)}
    if len(apps) != 1:
        raise ConfigError(f"{module_name} has {len(apps)} Apps", hint=_known(vars(module)))
    return next(iter(apps.values()))


def _known(names: dict[str, object]) -> str:
    apps = ", ".join(name for name, value in names.items() if isinstance(value, App))
    return f"it has: {apps}" if apps else "it has none; make one with app = leasehold.App()"


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop where it is installed: it halves what the event loop costs a job."""
    try:
        import uvloop  # noqa: PLC0415 (not on every platform)
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def sayer(source: str = "leasehold.supervise") -> Callable[[int, str], None]:
    """Return the function that writes messages: for people or, where programs read them, to the log of this name."""
    if logs.chosen[1] == logs.Format.JSON:
        return logger_of(source).log
    return lambda _level, text: None if logs.say(many_lines(text)) else say(text)


def supervised(options: SupervisorOptions, systemd: Systemd) -> int:
    """Run a supervisor and return its exit code. Logs are in the background: standard error may not be read."""
    return asyncio.run(Supervisor(options, systemd=systemd, say=sayer()).run())


def end_within(seconds: float, code: int, last: Callable[[], object] = lambda: None) -> None:
    """End this process with this exit code after these seconds, whatever still runs in it, unless it has ended."""

    def end() -> None:
        time.sleep(seconds)
        within(_LAST_LINES, last)  # in a thread
        within(_LAST_LINES, flush)  # a thread that writes to a pipe which is not read holds the lock of its handler
        os._exit(code)

    def flush() -> None:
        for handler in logging.getLogger().handlers:
            handler.flush()

    threading.Thread(target=end, name="leasehold-end", daemon=True).start()
