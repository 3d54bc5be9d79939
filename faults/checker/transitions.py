"""Laws of states: only along the table, and without a gap."""

from collections.abc import Iterator

from faults.checker.history import History
from faults.checker.violation import Violation

# Written out once more, apart from the database's own table.
LEGAL = frozenset(
    {
        (None, "created"),
        (None, "queued"),
        ("created", "queued"),
        ("created", "dead"),
        ("queued", "running"),
        ("queued", "dead"),
        ("running", "success"),
        ("running", "retry"),
        ("running", "queued"),
        ("running", "dead"),
        ("retry", "queued"),
        ("retry", "dead"),
        ("dead", "queued"),
    }
)


def states_move_along_the_table(history: History) -> Iterator[Violation]:
    """Each transition is legal, and starts where the one before it ended."""
    for before, event in history.pairs():
        if event.before != (before.after if before else None):
            was = before.after if before else "unheard of"
            yield Violation("states_move_along_the_table", event.job, f"was {was}, then left {event.before}")
        if event.before != event.after and (event.before, event.after) not in LEGAL:
            yield Violation("states_move_along_the_table", event.job, f"{event.before} -> {event.after}")


def only_claims_change_the_owner(history: History) -> Iterator[Violation]:
    """The owner of a running job changes only after its attempt has ended."""
    for before, event in history.pairs():
        if before is None or not event.renews:
            continue
        if (event.owner, event.attempt, event.claim) != (before.owner, before.attempt, before.claim):
            was = f"{before.owner}, attempt {before.attempt}"
            now = f"{event.owner}, attempt {event.attempt}"
            yield Violation("only_claims_change_the_owner", event.job, f"taken from {was} by {now} while it ran")
