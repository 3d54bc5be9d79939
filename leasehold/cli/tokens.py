"""`leasehold tokens`: who may use the HTTP API."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from typer import Argument, Option

from leasehold.cli.console import say
from leasehold.cli.options import UNITS, Commands, Session
from leasehold.db.store import TokenView
from leasehold.errors import ConfigError, LeaseholdError
from leasehold.operate import tokens
from leasehold.operate.refusals import Refusal
from leasehold.tokens import SCOPES, make_token

commands = Commands(name="tokens", help="Who may use the HTTP API.", no_args_is_help=True)

Id = Annotated[str, Argument(help="Its id, as `tokens list` shows it.", show_default=False)]


@commands.command("create")
def create(
    op: Session,
    name: Annotated[str, Argument(help="Whose it is, or what it is for.", show_default=False)],
    *,
    scope: Annotated[
        list[str],
        Option(
            "--scope", "-s", help="submit, status, read or operate; may be given several times.", show_default=False
        ),
    ],
    queue: Annotated[list[str] | None, Option("--queue", "-q", help="Only this queue; several times.")] = None,
    kind: Annotated[list[str] | None, Option("--kind", "-k", help="Only this kind; several times.")] = None,
    rate: Annotated[float | None, Option("--rate", help="At most so many requests a second.")] = None,
    namespace: Annotated[
        str | None, Option("--namespace", help="Whose jobs are its own; the name when left out.")
    ] = None,
    expires: Annotated[
        str | None, Option("--expires", help="When it ends: 12h, 30d, or a time such as 2030-01-31T12:00:00Z.")
    ] = None,
) -> None:
    """Make a token and print it, once: only its hash is kept, so it cannot be shown again."""
    scopes = sorted(set(scope))
    for one in scopes:
        if one not in SCOPES:
            raise ConfigError(f"scope {one!r} is unknown", hint=f"known: {', '.join(SCOPES)}")
    options: dict[str, Any] = {"queues": queue or None, "kinds": kind or None, "rate": rate, "namespace": namespace}
    options["expires_at"] = None if expires is None else _moment(expires, now=datetime.now(UTC))
    token = make_token(UUID(op.database.new_ids(1)[0]))
    op.run(tokens.create, token, name, scopes=scopes, **options)
    op.answer({"id": token.id, "token": token.reveal()}, token.reveal())
    say(f"token {token.id} of {name!r} allows {', '.join(scopes)}; keep it, it is not shown again")


@commands.command("list")
def list_(op: Session) -> None:
    """List the tokens, the latest first. Their secrets are not known."""
    op.table(
        op.run(tokens.listed),
        ("id", "name", "scopes", "for", "state", "namespace"),
        _cells,
        empty="there are no tokens; make one: leasehold tokens create NAME --scope submit --scope status",
        as_value=lambda token: {name: value for name, value in asdict(token).items() if name != "session"},
    )


@commands.command("revoke")
def revoke(op: Session, token_id: Id) -> None:
    """Revoke a token and all tokens that it made. Servers refuse them within seconds."""
    hint = "`leasehold tokens list` shows the ids"
    try:
        wanted = UUID(token_id)
    except ValueError:
        # Perhaps the token itself, which must not be repeated.
        raise ConfigError("this is not the id of a token", hint=hint) from None
    try:
        op.run(tokens.revoke, wanted)
    except Refusal:
        raise LeaseholdError(f"no token has the id {wanted}", hint=hint) from None
    op.answer({"id": wanted, "revoked": True})
    say(f"token {wanted} is revoked")


def _moment(text: str, *, now: datetime) -> datetime:
    number, unit = text[:-1], UNITS.get(text[-1:])
    try:
        moment = now + timedelta(seconds=float(number) * unit) if unit and number else datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        message = f"--expires {text!r} is neither a length of time nor a time"
        raise ConfigError(message, hint="write 12h, 30d or 2030-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        raise ConfigError(f"--expires {text!r} has no time zone", hint=f"write {text}Z for UTC")
    if moment <= now:
        raise ConfigError(f"--expires {text!r} is not in the future", hint="the token would never be good for anything")
    return moment


def _cells(token: TokenView) -> tuple[object, ...]:
    state = "live" if token.live else "revoked" if token.revoked_at else "expired"
    restrictions = [f"queue {name}" for name in token.queues or ()] + [f"kind {name}" for name in token.kinds or ()]
    whom = ", ".join(restrictions) or "everything"
    return (token.id, token.name, ",".join(token.scopes), whom, state, token.namespace)
