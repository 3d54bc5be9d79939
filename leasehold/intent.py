"""An intent: a job before it is recorded."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What `enqueue` records. Made by `task.intent(...)`."""

    kind: str
    """Which task shall run."""

    payload: str
    """Its arguments, as the text of a JSON object."""

    queue: str = "default"
    """Where it waits."""

    priority: int = 0
    """Higher is more urgent, -32767 to 32767."""

    run_after: datetime | timedelta | None = None
    """Not before this moment, or this long from now by the database's clock."""

    idempotency_key: str | None = None
    """At most one job per key, ever."""

    max_attempts: int = 5
    """How many failures end it."""

    exclusive_key: str | None = None
    """At most one job of this key runs at a time."""

    tags: tuple[str, ...] = ()
    """For people to find it by."""

    def columns(self) -> tuple[object, ...]:
        """The arguments of the SQL function `enqueue`, in its order, as plain values."""
        run_at, run_after = self.when()
        return (
            self.kind, self.payload, self.queue, self.priority, run_at, run_after, self.idempotency_key,
            self.max_attempts, self.exclusive_key, list(self.tags) or None,
        )  # fmt: skip

    @staticmethod
    def array(intents: Sequence["Intent"], ids: Sequence[UUID] | None = None) -> str:
        """The argument of the SQL function `enqueue_many`."""
        parts = []
        for n, intent in enumerate(intents):
            run_at, run_after = intent.when()
            fields = {
                "kind": intent.kind, "queue": intent.queue, "priority": intent.priority, "run_at": run_at,
                "run_after": run_after, "idempotency_key": intent.idempotency_key, "max_attempts": intent.max_attempts,
                "exclusive_key": intent.exclusive_key, "tags": intent.tags or None, "id": str(ids[n]) if ids else None,
            }  # fmt: skip
            given = json.dumps({name: value for name, value in fields.items() if value is not None})
            # The payload is JSON text already; decoding it only to encode it again could change numbers.
            parts.append(f'{given[:-1]}, "payload": {intent.payload}}}')
        return f"[{','.join(parts)}]"

    def when(self) -> tuple[str | None, str | None]:
        """`run_after` as the SQL arguments run_at and run_after."""
        match self.run_after:
            case datetime() as moment:
                return moment.isoformat(), None
            case timedelta() as delay:
                return None, f"{delay.total_seconds():.6f} seconds"
            case _:
                return None, None
