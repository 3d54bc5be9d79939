"""Names that people get wrong: told with those that exist."""

import difflib
from collections.abc import Sequence

from leasehold.db.pool import Database
from leasehold.errors import LeaseholdError, NotPermitted

_MOST = 20
"""So many names are shown."""


class UnknownName(LeaseholdError, LookupError):
    """Nothing goes by that name here."""


def unknown(what: str, name: str, known: Sequence[str], *, more: str = "") -> UnknownName:
    """The error that says so, with the names that exist, the likely one first."""
    near = difflib.get_close_matches(name, known, n=1)
    guess = f"did you mean {near[0]!r}? " if near else ""
    rest = f" and {len(known) - _MOST} more" if len(known) > _MOST else ""
    return UnknownName(
        f"{what} {name!r} unknown", hint=f"{guess}known: {', '.join(known[:_MOST]) or 'none'}{rest}{more}"
    )


def check_names(database: Database, *, queue: str | None = None, kind: str | None = None, more: str = "") -> None:
    """Refuse a queue or a kind that nothing is known of. Whoever may not ask is believed."""
    try:
        names = database.run(database.store.names())
    except NotPermitted:
        return
    if queue is not None and queue not in names.queues:
        raise unknown("queue", queue, names.queues, more=more)
    if kind is not None and not names.kinds:
        raise UnknownName(f"kind {kind!r} unknown: no worker has started on this database yet", hint=f"start one{more}")
    if kind is not None and kind not in names.kinds:
        raise unknown("kind", kind, names.kinds, more=more)
