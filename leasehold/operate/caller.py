"""Who calls, and which jobs that caller may see and change: one type for tokens, browser sessions and the CLI."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypedDict, TypeVar
from uuid import UUID

from leasehold.db.store import Seen
from leasehold.operate.refusals import Refusal, unknown
from leasehold.tokens import SCOPES

T = TypeVar("T")

CONTENT: Final = frozenset((
    "payload", "result", "metadata", "idempotency_key", "reason_detail", "error_message", "error_traceback",
    "last_message",
))  # fmt: skip
"""The fields of rows that only a caller with the scope operate sees, and may filter by: what clients and tasks wrote,
which may hold secrets. Tags and exclusive keys are names, by which people find jobs and the database orders them.
"""


class Narrow(TypedDict):
    """The arguments of a call that narrow it; None: all."""

    queues: list[str] | None
    kinds: list[str] | None


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller and its permissions. One that is restricted to queues or kinds learns nothing of any other."""

    name: str
    scopes: frozenset[str] = frozenset(SCOPES)
    queues: frozenset[str] | None = None
    kinds: frozenset[str] | None = None
    """The only queues, and the only kinds; None: all."""
    token: UUID | None = None
    """None: no token was needed."""
    namespace: str | None = None
    """The namespace whose jobs are the caller's own."""
    restricted: bool = field(init=False)
    """Whether this is for some queues or kinds only. Its idempotency keys are then apart from other namespaces'."""

    def __post_init__(self) -> None:
        # Once: a caller is kept for many requests.
        object.__setattr__(self, "restricted", self.queues is not None or self.kinds is not None)

    @property
    def sees_content(self) -> bool:
        """Whether this sees the fields in CONTENT, and logs."""
        return "operate" in self.scopes

    def visible(self, row: T) -> T:
        """Return a row as the caller may see it: without the fields in CONTENT, unless it sees content."""
        names = () if self.sees_content else CONTENT & {one.name for one in fields(row)}  # type: ignore[arg-type]
        return replace(row, **dict.fromkeys(names)) if names else row  # type: ignore[type-var]

    def may_see(self, job: Seen, *scopes: str) -> bool:
        """Return whether the caller may see a job of its queues and kinds: an own one, or with one of the scopes."""
        return self.may(queue=job.queue, kind=job.kind) and (
            job.origin == self.namespace or not self.scopes.isdisjoint(scopes)
        )

    def may(self, *, queue: str | None, kind: str) -> bool:
        """Return whether the caller may see and submit jobs of this queue and kind; None: a queue that SQL chooses."""
        return (queue is None or self.queues is None or queue in self.queues) and (
            self.kinds is None or kind in self.kinds
        )

    def narrow(self, *, queue: str | None = None, kind: str | None = None) -> Narrow:
        """Return the arguments `queues` and `kinds` of a call, for the one queue or kind that is wanted; None: all."""
        return {"queues": _chosen(self.queues, queue, "queue"), "kinds": _chosen(self.kinds, kind, "job type")}

    def narrowed(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Return the filter without what the caller may not see."""
        return {**wanted, **{name: names for name, names in self.narrow().items() if names is not None}}

    def check_unrestricted(self, what: str) -> None:
        """Refuse a caller that is for some queues or kinds only."""
        if self.restricted:
            raise Refusal("forbidden", f"{what} needs a token for all queues and kinds")

    def check_whole_queue(self, queue: str) -> None:
        """Refuse a caller that does not know the queue, or not all kinds in it."""
        if self.queues is not None and queue not in self.queues:
            raise unknown("queue")
        if self.kinds is not None:
            raise Refusal("forbidden", "a whole queue needs a token for all kinds")


ANONYMOUS: Final = Caller("anonymous")
"""The caller of a server that needs no tokens."""


def _chosen(allowed: frozenset[str] | None, asked: str | None, what: str) -> list[str] | None:
    if asked is None:
        return None if allowed is None else sorted(allowed)
    if allowed is not None and asked not in allowed:
        raise unknown(what)
    return [asked]
