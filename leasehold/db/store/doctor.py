"""The calls of whoever wants to know what is wrong, and which names there are."""

from collections.abc import Sequence
from dataclasses import dataclass

from leasehold.db.call import Call, Row
from leasehold.db.store.calls import Calls

_TEXTS = {
    "doctor": "select name, verdict, detail, cure from {}.doctor_v1()",
    "names": "select what, name from {}.names_v1(%s)",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a doctor has looked at."""

    name: str
    verdict: str
    """`ok`, `warn` or `fail`."""
    detail: str
    """What was found, in words."""
    cure: str
    """What to do about it, if it is not ok."""


@dataclass(frozen=True, slots=True)
class Names:
    """The queues and kinds that anything is known of, by name."""

    queues: list[str]
    kinds: list[str]


class DoctorCalls(Calls):
    """Find out what is wrong, and change nothing."""

    texts = _TEXTS

    def doctor(self) -> Call[list[Finding]]:
        """What can be found out from within the database."""
        return Call(self._sql["doctor"], (), lambda rows: [Finding(*row) for row in rows], repeatable=True)

    def names(self, count: int = 1000) -> Call[Names]:
        """The queues and kinds that are known, at most so many of each."""
        return Call(self._sql["names"], (count,), _names, repeatable=True)


def _names(rows: Sequence[Row]) -> Names:
    return Names(*([name for what, name in rows if what == wanted] for wanted in ("queue", "kind")))
