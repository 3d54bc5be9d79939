"""`leasehold tokens`: who may use the HTTP API."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import typer

from leasehold.cli.connected import AsJson, Dsn, Schema, connected, print_json
from leasehold.cli.console import say, show_table
from leasehold.db.store import TokenView
from leasehold.errors import ConfigError, LeaseholdError
from leasehold.tokens import SCOPES, make_token

commands = typer.Typer(name="tokens", help="Who may use the HTTP API.", no_args_is_help=True)

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@commands.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Whose it is, or what it is for.", show_default=False)],
    *,
    scope: Annotated[
        list[str],
        typer.Option(
            "--scope", "-s", help="submit, status, read or operate; may be given several times.", show_default=False
        ),
    ],
    queue: Annotated[list[str] | None, typer.Option("--queue", "-q", help="Only this queue; several times.")] = None,
    kind: Annotated[list[str] | None, typer.Option("--kind", "-k", help="Only this kind; several times.")] = None,
    rate: Annotated[float | None, typer.Option("--rate", help="At most so many requests a second.")] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", help="Whose jobs are its own; the name when left out.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", help="When it ends: 12h, 30d, or a time such as 2030-01-31T12:00:00Z.")
    ] = None,
    dsn: Dsn = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it: once, for nobody can show it again. Only its hash is kept."""
    _check_scopes(scope)
    expires_at = None if expires is None else _moment(expires, now=datetime.now(UTC))
    with connected(dsn, schema) as database:
        token = make_token(UUID(database.new_ids(1)[0]))
        database.run(
            database.store.create_token(
                token.id,
                name,
                token.hash(),
                scopes=sorted(set(scope)),
                queues=queue or None,
                kinds=kind or None,
                rate=rate,
                expires_at=expires_at,
                namespace=namespace,
            )
        )
    if as_json:
        print_json({"id": str(token.id), "token": token.reveal()})
    else:
        typer.echo(token.reveal())
    say(f"token {token.id} of {name!r} allows {', '.join(sorted(set(scope)))}; keep it, it is not shown again")


@commands.command("list")
def list_(*, dsn: Dsn = None, schema: Schema = None, as_json: AsJson = False) -> None:
    """List the tokens, the latest first. Their secrets are not known."""
    with connected(dsn, schema) as database:
        tokens = database.run(database.store.tokens())
    if as_json:
        print_json([_as_json(token) for token in tokens])
        return
    show_table(("id", "name", "scopes", "for", "state", "namespace"), map(_line, tokens))
    if not tokens:
        say("there are no tokens; make one: leasehold tokens create NAME --scope submit --scope status")


@commands.command("revoke")
def revoke(
    token_id: Annotated[str, typer.Argument(help="Its id, as `tokens list` shows it.", show_default=False)],
    *,
    dsn: Dsn = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> None:
    """Let a token, and all that it made, be good for nothing any more. Servers know it within seconds."""
    try:
        wanted = UUID(token_id)
    except ValueError:
        # Perhaps the token itself, which must not be repeated.
        raise ConfigError("this is not the id of a token", hint="`leasehold tokens list` shows the ids") from None
    with connected(dsn, schema) as database:
        if not database.run(database.store.revoke_token(wanted)):
            raise LeaseholdError(f"no token has the id {wanted}", hint="`leasehold tokens list` shows the ids")
    if as_json:
        print_json({"id": str(wanted), "revoked": True})
    say(f"token {wanted} is revoked")


def _check_scopes(scopes: list[str]) -> None:
    for scope in scopes:
        if scope not in SCOPES:
            raise ConfigError(f"scope {scope!r} is unknown", hint=f"known: {', '.join(SCOPES)}")


def _moment(text: str, *, now: datetime) -> datetime:
    number, unit = text[:-1], _UNITS.get(text[-1:])
    try:
        moment = now + timedelta(**{unit: float(number)}) if unit and number else datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"--expires {text!r} is neither a length of time nor a time", hint="write 12h, 30d or 2030-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        raise ConfigError(f"--expires {text!r} has no time zone", hint=f"write {text}Z for UTC")
    if moment <= now:
        raise ConfigError(f"--expires {text!r} is not in the future", hint="the token would never be good for anything")
    return moment


def _as_json(token: TokenView) -> dict[str, Any]:
    return {
        "id": str(token.id),
        "name": token.name,
        "scopes": token.scopes,
        "queues": token.queues,
        "kinds": token.kinds,
        "rate": token.rate,
        "created_at": token.created_at.isoformat(),
        "expires_at": token.expires_at and token.expires_at.isoformat(),
        "revoked_at": token.revoked_at and token.revoked_at.isoformat(),
        "live": token.live,
        "namespace": token.namespace,
        "created_by": token.created_by and str(token.created_by),
    }


def _line(token: TokenView) -> tuple[str, ...]:
    state = "live" if token.live else "revoked" if token.revoked_at else "expired"
    restrictions = [f"queue {name}" for name in token.queues or ()] + [f"kind {name}" for name in token.kinds or ()]
    whom = ", ".join(restrictions) or "everything"
    return (str(token.id), token.name, ",".join(token.scopes), whom, state, token.namespace or "")
