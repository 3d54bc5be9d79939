"""The options about logs that several commands have."""

import logging
from collections.abc import Callable
from typing import Annotated, TypeAlias

import typer

from leasehold import logs
from leasehold.cli.console import say

LogLevel: TypeAlias = Annotated[
    logs.Level, typer.Option("--log-level", envvar="LEASEHOLD_LOG_LEVEL", help="What is important enough to be logged.")
]
LogFormat: TypeAlias = Annotated[
    logs.Format, typer.Option("--log-format", envvar="LEASEHOLD_LOG_FORMAT", help="Lines for people, or JSON.")
]
Tracebacks: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--tracebacks",
        envvar="LEASEHOLD_LOG_TRACEBACKS",
        help="Log the traceback of each failed attempt, not only of the last. As JSON it is always there.",
    ),
]


def sayer() -> Callable[[str], None]:
    """How a supervisor speaks: to people, or, where programs read the log, as a line of it."""
    return logging.getLogger("leasehold.supervise").info if logs.chosen()[1] == logs.Format.JSON else say
