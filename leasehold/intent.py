"""An intent: a job before it is recorded."""

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from leasehold.errors import InvalidJob
from leasehold.jsonlimits import find_problem
from leasehold.texts import repr_of, text_of

LARGEST = 32_767
"""Of priorities, either way, and of max_attempts: both are a smallint."""

CANCEL = "@cancel:"
"""How the hint begins that a running job was cancelled; its id follows."""

DUE = "@due"
"""The hint for jobs that wait for their time."""

DECLARED = "@queue of "
"""With a kind behind it, the hint for jobs that wait in the queue which their kind declares. Others name a queue."""

SHOWN = 80
"""Characters of a refused value in the message that refuses it."""

MAX_NAME_BYTES = 200
MAX_KEY_BYTES = 500
MAX_TAGS = 50

FIRST_MOMENT = datetime(1, 1, 2, tzinfo=UTC)
LAST_MOMENT = datetime(9999, 12, 30, tzinfo=UTC)
"""Between these a time can be read in every time zone."""
LONGEST_DELAY = timedelta(days=365_000)

SCHEDULED = "schedule:"
"""How the idempotency keys of jobs that schedules make begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What `enqueue` records. Made by `task.intent(...)`.

    What the database would refuse is refused here, before it can spoil a transaction of yours.
    """

    kind: str
    """Which task shall run."""

    payload: str
    """Its arguments, as the text of a JSON object."""

    queue: str | None = None
    """Where it waits. None, here and below: what the kind's task declares, as the database knows it from workers."""

    priority: int | None = None
    """Higher is more urgent, -32767 to 32767."""

    run_after: datetime | timedelta | None = None
    """Not before this moment, or this long from now by the database's clock."""

    idempotency_key: str | None = None
    """At most one job per key, ever."""

    max_attempts: int | None = None
    """How many failures end it."""

    exclusive_key: str | None = None
    """At most one job of this key runs at a time."""

    tags: tuple[str, ...] = ()
    """For people to find it by."""

    strict: bool = False
    """A used idempotency key is refused if its job has another kind or payload."""

    head: str = field(default="", init=False, repr=False, compare=False)
    """All but the payload, as the beginning of a JSON object: made once for all intents that differ only in that."""

    def __post_init__(self) -> None:
        try:
            check_name("kind", self.kind)
            if self.queue is not None:
                check_name("queue", self.queue)
            if self.priority is not None:
                check_number("priority", self.priority, -LARGEST, LARGEST)
            if self.max_attempts is not None:
                check_number("max_attempts", self.max_attempts, 1, LARGEST)
            check_key("idempotency_key", self.idempotency_key)
            check_not_scheduled(self.idempotency_key)
            check_key("exclusive_key", self.exclusive_key)
            check_tags(self.tags)
            check_run_after(self.run_after)
            check_payload(self.payload)
            if not isinstance(self.strict, bool):
                raise ValueError(f"strict {repr_of(self.strict, SHOWN)} is neither True nor False")  # noqa: TRY004, TRY301
        except ValueError as problem:
            raise InvalidJob(f"{text_of(self.kind, SHOWN)}: {problem}", hint="nothing was recorded") from None
        _SET["head"](self, self._make_head())

    def carrying(self, payload: str) -> "Intent":
        """The same with another payload. Everything else has been checked, so this is cheap."""
        other = object.__new__(Intent)
        for name, put in _SETTERS:
            put(other, getattr(self, name))
        _SET["payload"](other, payload)
        return other

    @property
    def hints(self) -> tuple[str, ...]:
        """What to say to sleeping workers: that its queue has work, that something waits for its time, or both."""
        queue = self.queue if self.queue is not None else DECLARED + self.kind
        match self.run_after:
            case datetime():
                return (queue, DUE)  # only the database knows whether that is past
            case timedelta() as delay if delay > timedelta(0):
                return (DUE,)
            case _:
                return (queue,)

    @property
    def hints_are_certain(self) -> bool:
        """Whether recording it tells just these: the job of a used key tells nothing, one for a moment either."""
        return self.idempotency_key is None and not isinstance(self.run_after, datetime)

    @property
    def is_plain(self) -> bool:
        """Whether it is to run at once and has neither keys nor tags."""
        return self.run_after is None and self.idempotency_key is None and self.exclusive_key is None and not self.tags

    def columns(self) -> tuple[object, ...]:
        """The arguments of the SQL function `enqueue`, in its order, as plain values."""
        run_at, run_after = self.when()
        return (
            self.kind, self.payload, self.queue, self.priority, run_at, run_after, self.idempotency_key,
            self.max_attempts, self.exclusive_key, list(self.tags) or None, self.strict,
        )  # fmt: skip

    @staticmethod
    def array(intents: Sequence["Intent"], ids: Sequence[str] | None = None) -> str:
        """The argument of the SQL function `enqueue_many`."""
        # The payload is JSON text already; decoding it only to encode it again could change numbers.
        if ids is None:
            parts = [f'{intent.head}, "payload": {intent.payload}}}' for intent in intents]
        else:
            pairs = zip(intents, ids, strict=True)
            parts = [f'{intent.head}, "id": "{id_}", "payload": {intent.payload}}}' for intent, id_ in pairs]
        return f"[{','.join(parts)}]"

    def _make_head(self) -> str:
        run_at, run_after = self.when()
        fields = {
            "kind": self.kind, "queue": self.queue, "priority": self.priority, "run_at": run_at,
            "run_after": run_after, "idempotency_key": self.idempotency_key, "max_attempts": self.max_attempts,
            "exclusive_key": self.exclusive_key, "tags": self.tags or None, "strict": self.strict or None,
        }  # fmt: skip
        return json.dumps({name: value for name, value in fields.items() if value is not None})[:-1]

    def when(self) -> tuple[str | None, str | None]:
        """`run_after` as the SQL arguments run_at and run_after."""
        match self.run_after:
            case datetime() as moment:
                return moment.isoformat(), None
            case timedelta() as delay:
                # Never days: PostgreSQL's last 23 to 25 hours, as the session's time zone has it.
                return None, f"{delay // timedelta(microseconds=1)} microseconds"
            case _:
                return None, None


class Chunks:
    """Intents in pieces, so that the database can work on one while the next is made.

    All that have an idempotency key come in one piece: only within a statement are keys taken in one order, and two
    batches that take the same keys in different orders would wait for each other.
    """

    SIZE = 250
    LARGEST = 4000
    """They double: each piece takes a place in the server's lock table, which has some thousand."""

    def __init__(self, intents: Iterable[Intent]) -> None:
        if isinstance(intents, Intent) or not isinstance(intents, Iterable):
            raise _no_intent(intents, "several of them in a list or a generator")
        self._intents = iter(intents)
        self.given: list[Intent] = []
        """All that have come so far."""
        self.ended = False
        """Whether there are no more, as far as is known."""

    def __iter__(self) -> Iterator[list[Intent]]:
        began = time.monotonic()
        size = self.SIZE
        chunk: list[Intent] = []
        for intent in self._intents:
            if not isinstance(intent, Intent):
                raise _no_intent(intent, "task.intent(…) makes one of the arguments", len(self.given) + len(chunk))
            chunk.append(intent)
            if intent.idempotency_key is not None:
                size = sys.maxsize
            if len(chunk) >= size:
                if not self.given and time.monotonic() - began > _SLOW:
                    size = sys.maxsize  # whoever makes them waits for something: not while a transaction is open
                    continue
                self.given += chunk
                yield chunk
                chunk = []
                size = min(2 * size, self.LARGEST)
        self.ended = True
        self.given += chunk
        if chunk:
            yield chunk


def _no_intent(value: object, hint: str, place: int | None = None) -> InvalidJob:
    where = "" if place is None else f" (item {place})"
    return InvalidJob(f"enqueue_many takes intents, not {value!r:.200}{where}", hint=f"{hint}; nothing was recorded")


_SLOW = 0.1
"""Seconds for the first piece, which takes some milliseconds when it only has to be computed."""


# The slots themselves: the way past `frozen` for those who make intents by the thousand.
_SET = {name: getattr(Intent, name).__set__ for name in Intent.__slots__}
_SETTERS = tuple((name, put) for name, put in _SET.items() if name != "payload")


def check_name(what: str, name: object) -> None:
    """Refuse, with ValueError, what cannot be the name of a kind or of a queue."""
    _check_text(what, name, MAX_NAME_BYTES)


def check_number(what: str, number: object, least: int, most: int) -> None:
    """Refuse, with ValueError, a number that the database has no room for."""
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
        raise ValueError(f"{what} {repr_of(number, SHOWN)} is not a number between {least} and {most}")


def check_payload(text: object) -> None:
    """Refuse, with ValueError, what is not the text of a JSON object, or what jsonb could not store."""
    if text == "{}":
        return
    if not isinstance(text, str):
        raise ValueError(f"payload {repr_of(text, SHOWN)} is not the text of a JSON object; json.dumps(…) makes one")  # noqa: TRY004
    if (problem := find_problem(text)) is not None:
        raise ValueError(f"payload{''.join(f'.{step}' for step in problem.where)}: {problem.what}")
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"payload {repr_of(text, SHOWN)} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"payload {repr_of(text, SHOWN)} is not a JSON object: it holds the arguments by name")  # noqa: TRY004


def check_run_after(when: object) -> None:
    """Refuse, with ValueError, a time that is ambiguous or beyond the calendar."""
    match when:
        case datetime() if when.utcoffset() is None:
            raise ValueError(f"run_after {when} has no time zone; use datetime.now(UTC) + ...")
        case timedelta() if abs(when.days) > LONGEST_DELAY.days:
            raise ValueError(f"run_after {when} is beyond the calendar")
        case datetime() if not FIRST_MOMENT <= when <= LAST_MOMENT:
            raise ValueError(f"run_after {when} is beyond the calendar")
        case None | datetime() | timedelta():
            pass
        case _:
            raise ValueError(f"run_after {repr_of(when, SHOWN)} is neither a datetime nor a timedelta")


def check_key(what: str, key: object) -> None:
    """Refuse, with ValueError, what cannot be an idempotency key or an exclusive key."""
    if key is not None:
        _check_text(what, key, MAX_KEY_BYTES)


def check_not_scheduled(key: str | None) -> None:
    """Refuse, with ValueError, an idempotency key that keeps a schedule from recording its job."""
    if key is not None and key.startswith(SCHEDULED):
        raise ValueError(f"idempotency_key {repr_of(key, SHOWN)} begins as those of schedules' jobs do")


def check_tags(tags: object) -> None:
    """Refuse, with ValueError, what cannot be tags."""
    if not isinstance(tags, tuple):
        raise ValueError(f"tags {repr_of(tags, SHOWN)} are not a tuple of texts")  # noqa: TRY004 (one kind of mistake to handle)
    if len(tags) > MAX_TAGS:
        raise ValueError(f"{len(tags)} tags are more than {MAX_TAGS}")
    for tag in tags:
        _check_text("tag", tag, MAX_KEY_BYTES, least=0)


def _check_text(what: str, text: object, most: int, *, least: int = 1) -> None:
    if not isinstance(text, str):
        raise ValueError(f"{what} {repr_of(text, SHOWN)} is not a text")  # noqa: TRY004 (one kind of mistake to handle)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError(
            f"{what} {repr_of(text, SHOWN)} contains a lone surrogate, which is not Unicode text"
        ) from None
    if "\0" in text:
        raise ValueError(f"{what} {repr_of(text, SHOWN)} contains the character NUL, which PostgreSQL cannot store")
    if not least <= size <= most:
        shown = repr(text) if size <= most else f"of {size} bytes"
        raise ValueError(f"{what} {shown} does not have {least} to {most} bytes")
