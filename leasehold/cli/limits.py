"""`leasehold limits`: how many jobs may run at the same time."""

from typing import Annotated

from typer import Argument, Option

from leasehold.cli import completion
from leasehold.cli.console import say, when
from leasehold.cli.options import Commands, Session, unknown
from leasehold.errors import ConfigError
from leasehold.operate import limits
from leasehold.operate.refusals import Refusal

commands = Commands(name="limits", help="How many jobs may run at the same time.", no_args_is_help=True)

Scope = Annotated[
    str,
    Argument(
        help="global, queue, kind, or key (of exclusive keys).",
        show_default=False,
        autocompletion=completion.among(*limits.SCOPES),
    ),
]
Name = Annotated[
    str | None, Argument(help="The queue, the kind, or how the keys begin; none for global.", show_default=False)
]


@commands.command("list")
def list_(op: Session) -> None:
    """List the limits, and what runs under each."""
    op.table(
        op.run(limits.listed),
        ("scope", "name", "max", "running", "changed"),
        lambda row: (row.scope, row.name, row.max_running, row.running, when(row.updated_at)),
        right=("max", "running"),
        empty="there are no limits; set one: leasehold limits set queue reports --max 5",
    )


@commands.command("set")
def set_(
    op: Session,
    scope: Scope,
    name: Name = None,
    *,
    most: Annotated[int, Option("--max", "-m", min=0, help="So many may run; 0: none.", show_default=False)],
    anyway: Annotated[bool, Option("--anyway", help="Also if nothing is known of that queue or kind.")] = False,
) -> None:
    """Let at most so many jobs run at the same time: of a queue, of a kind, of keys that begin alike, in all."""
    name = _checked(scope, name)
    if most > 2**31 - 1:
        raise ConfigError(f"--max {most} is more than PostgreSQL can count", hint="leave the limit out")
    if scope in ("queue", "kind") and not anyway:
        op.check_names(**{scope: name}, more="; --anyway limits it nevertheless")
    op.run(limits.set_limit, scope, name, most)
    op.answer({"scope": scope, "name": name, "max_running": most})
    say(f"at most {most} may run under the limit {_shown(scope, name)}")


@commands.command("clear")
def clear(op: Session, scope: Scope, name: Name = None) -> None:
    """Take a limit away."""
    name = _checked(scope, name)
    try:
        op.run(limits.drop, scope, name)
    except Refusal:
        known = [_shown(row.scope, row.name) for row in op.run(limits.listed)]
        raise unknown("limit", _shown(scope, name), known) from None
    op.answer({"scope": scope, "name": name, "cleared": True})
    say(f"the limit {_shown(scope, name)} is gone")


def _checked(scope: str, name: str | None) -> str:
    if scope not in limits.SCOPES:
        raise ConfigError(f"scope {scope!r} unknown", hint=f"known: {', '.join(limits.SCOPES)}")
    if scope == "global" and name:
        raise ConfigError(f"the global limit has no name, and {name!r} was given", hint="leave it out")
    if scope != "global" and not name:
        raise ConfigError(f"which {scope}?", hint=f"leasehold limits set {scope} NAME --max 5")
    return name or ""


def _shown(scope: str, name: str) -> str:
    return f"{scope} {name}".strip()
