"""Which jobs: the options that several commands share, made into a filter."""

from typing import Annotated, Any

import typer

from leasehold.cli.completion import among, kinds, queues
from leasehold.cli.parsing import moment_or_ago
from leasehold.errors import ConfigError

STATES = ("created", "queued", "running", "success", "retry", "dead")

State = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        "-s",
        help="created, queued, running, success, retry or dead; several times.",
        autocompletion=among(*STATES),
    ),
]
Kind = Annotated[str | None, typer.Option("--kind", "-k", help="Jobs of this kind.", autocompletion=kinds)]
Queue = Annotated[str | None, typer.Option("--queue", "-q", help="Jobs of this queue.", autocompletion=queues)]
Tag = Annotated[str | None, typer.Option("--tag", help="Jobs with this tag.")]
ExclusiveKey = Annotated[str | None, typer.Option("--exclusive-key", help="Jobs with this exclusive key.")]
ErrorClass = Annotated[
    str | None, typer.Option("--error", help="Jobs whose latest recorded attempt ended with this class of error.")
]
Since = Annotated[str | None, typer.Option("--since", help="Created since: 15m, 2h, or 2030-01-31T12:00:00Z.")]
Before = Annotated[str | None, typer.Option("--before", help="Created before: 15m (ago), or a time.")]


def make_filter(
    *,
    state: list[str] | None = None,
    kind: str | None = None,
    queue: str | None = None,
    tag: str | None = None,
    exclusive_key: str | None = None,
    error: str | None = None,
    since: str | None = None,
    before: str | None = None,
) -> dict[str, Any]:
    """The filter as the database takes it."""
    for name in state or ():
        if name not in STATES:
            raise ConfigError(f"state {name!r} unknown", hint=f"known: {', '.join(STATES)}")
    fields = {
        "state": list(dict.fromkeys(state)) if state else None,
        "kind": kind,
        "queue": queue,
        "tag": tag,
        "exclusive_key": exclusive_key,
        "error_class": error,
        "created_after": since and moment_or_ago(since, option="--since").isoformat(),
        "created_before": before and moment_or_ago(before, option="--before").isoformat(),
    }
    for name, value in fields.items():
        if value == "" or (isinstance(value, str) and "\0" in value):
            raise ConfigError(f"--{name.replace('_', '-')} {value!r} is no name", hint="leave the option out for all")
    return {name: value for name, value in fields.items() if value is not None}
