"""An intent: a job before it is recorded."""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypedDict

from leasehold._facts import MAX_KEY_BYTES, MAX_METADATA_BYTES, MAX_NAME_BYTES, MAX_NUMBER, MAX_TAGS
from leasehold._jsonlimits import find_problem
from leasehold._texts import repr_of, text_of
from leasehold.errors import InvalidJob

SHOWN = 80
"""Characters of a refused value in the message that refuses it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFields:
    """What a job asks for, or the jobs of a schedule. None: what a worker has declared for the kind.

    What the database would refuse is refused here, before it can spoil a transaction of yours.
    """

    queue: str | None = None
    """Where it waits. Else `default`."""
    priority: int | None = None
    """Higher is more urgent, -32767 to 32767. Else 0."""
    max_attempts: int | None = None
    """How many failures end it. Else `leasehold.retry.USUAL_ATTEMPTS`."""
    exclusive_key: str | None = None
    """At most one job of this key runs at a time."""
    tags: tuple[str, ...] = ()
    """For people to find it by."""
    metadata: Mapping[str, object] | None = field(default=None, hash=False)
    """What belongs to the call and not to the task, such as headers and a trace context: a small JSON object, copied
    when this is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent(JobFields):
    """What `enqueue` records. Made by `task.intent(...)`."""

    kind: str
    """Which task shall run."""
    payload: str
    """Its arguments, as the text of a JSON object."""
    run_after: datetime | timedelta | None = None
    """Not before this moment, or this long from now by the database's clock."""
    idempotency_key: str | None = None
    """At most one job per key, ever."""
    strict: bool = False
    """A used idempotency key is refused if its job has another kind, payload, queue or priority."""
    named: Mapping[str, object] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The arguments of the SQL function `enqueue` that it names, without the payload."""
    head: str = field(default="", init=False, repr=False, compare=False)
    """All but the payload, as the beginning of a JSON object: made once for all intents that differ only in that."""
    is_plain: bool = field(default=False, init=False, repr=False, compare=False)
    """Whether it has a payload and what a task declares, and nothing else."""

    def __post_init__(self) -> None:
        try:
            check_fields(self)
        except ValueError as problem:
            raise InvalidJob(f"{text_of(self.kind, SHOWN)}: {problem}", hint="nothing was recorded") from None
        copy_metadata(self)
        named = self._name_arguments()
        _SET["head"](self, json.dumps(named)[:-1])
        if self.metadata is not None:
            named["metadata"] = json.dumps(self.metadata)
        _SET["named"](self, named)
        _SET["is_plain"](self, self.named.keys() <= {"kind", "queue", "priority", "max_attempts"})

    def carrying(self, payload: str) -> "Intent":
        """Return the same with another payload. Everything else has been checked, so this is cheap."""
        other = object.__new__(Intent)
        for name, put in _SETTERS:
            put(other, getattr(self, name))
        _SET["payload"](other, payload)
        return other

    def arguments(self, names: Iterable[str]) -> list[object]:
        """Return the values of these arguments of the SQL function `enqueue`; None for what is left out."""
        values = {**self.named, "payload": self.payload}
        return [values.get(name) for name in names]

    @staticmethod
    def array(intents: Sequence["Intent"], ids: Sequence[str] | None = None) -> str:
        """Return the argument of the SQL function `enqueue_many`."""
        # The payload is JSON text already; decoding it only to encode it again could change numbers.
        if ids is None:
            parts = [f'{intent.head}, "payload": {intent.payload}}}' for intent in intents]
        else:
            pairs = zip(intents, ids, strict=True)
            parts = [f'{intent.head}, "id": "{id_}", "payload": {intent.payload}}}' for intent, id_ in pairs]
        return f"[{','.join(parts)}]"

    def _name_arguments(self) -> dict[str, object]:
        run_at, run_after = self.when()
        values = {name: getattr(self, name, None) for name in ARGUMENTS if name != "payload"}
        values |= {"run_at": run_at, "run_after": run_after}
        values |= {"tags": list(self.tags) or None, "strict": self.strict or None}
        return {name: value for name, value in values.items() if value is not None}

    def when(self) -> tuple[str | None, str | None]:
        """Return `run_after` as the SQL arguments run_at and run_after."""
        match self.run_after:
            case datetime() as moment:
                return moment.isoformat(), None
            case timedelta() as delay:
                # Not in days: one lasts 23 to 25 hours where the session's time zone changes its clocks.
                return None, f"{delay // timedelta(microseconds=1)} microseconds"
            case _:
                return None, None


ARGUMENTS: Final = {
    "kind": "text", "payload": "jsonb", "queue": "text", "priority": "integer", "run_at": "timestamptz",
    "run_after": "interval", "idempotency_key": "text", "max_attempts": "integer", "exclusive_key": "text",
    "tags": "text[]", "strict": "boolean", "metadata": "jsonb",
}  # fmt: skip
"""The arguments of the SQL function `enqueue` that an intent has values for, each with its type."""


class _Unset:
    """The default of an argument that may be left out where None means something."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final[Any] = _Unset()


class CommonOptions(TypedDict, total=False):
    """What a caller may ask for, of one job or of all jobs of a schedule: see `JobFields`."""

    queue: str
    priority: int
    max_attempts: int
    exclusive_key: str
    tags: tuple[str, ...] | list[str]
    metadata: Mapping[str, object]


class JobOptions(CommonOptions, total=False):
    """What a caller may ask for beyond what the task declares, by Python or over HTTP."""

    strict: bool


class Wishes(JobOptions, total=False):
    """The same for `using()`: also when the job runs, its key, and the connection that records it."""

    run_after: datetime | timedelta
    idempotency_key: str
    connection: object


def checked_options(what: str, given: Mapping[str, Any], known: type) -> dict[str, Any]:
    """Return options by name, as a dataclass takes them; TypeError for one that `known`, a TypedDict, does not have."""
    if unknown := given.keys() - known.__annotations__.keys():
        raise TypeError(f"{what} takes no argument {min(unknown)!r}; known: {', '.join(known.__annotations__)}")
    return {
        name: tuple(value) if name == "tags" and isinstance(value, list) else value for name, value in given.items()
    }


def show_options(function: Any, known: type) -> None:
    """Have help() and editors show the names of a TypedDict instead of `**options`."""
    before = inspect.signature(function)
    keyword = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY, default=UNSET)
    plain = [one for one in before.parameters.values() if one.kind is not one.VAR_KEYWORD]
    named = [keyword(name, annotation=hint) for name, hint in known.__annotations__.items()]
    function.__signature__ = before.replace(parameters=[*plain, *named])


# The setters of the slots, which pass by `frozen`: carrying() makes intents by the thousand.
_SET = {one.name: getattr(Intent, one.name).__set__ for one in fields(Intent)}
_SETTERS = tuple((name, put) for name, put in _SET.items() if name != "payload")


def check_fields(job: Any, more: Mapping[str, Callable[[str, Any], None]] = MappingProxyType({})) -> None:
    """Refuse, with ValueError, a value that the database would refuse; `more`: how to check other fields."""
    checks = {**_CHECKS, **more}
    for one in fields(job):
        value = getattr(job, one.name)
        if value is not one.default and one.name in checks:
            checks[one.name](one.name, value)


def check_name(what: str, name: object) -> None:
    """Refuse, with ValueError, what cannot be the name of a kind or of a queue."""
    _check_text(what, name, MAX_NAME_BYTES)


def check_number(what: str, number: object, *, least: int, most: int) -> None:
    """Refuse, with ValueError, a number that the database has no room for."""
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
        raise ValueError(f"{what} {repr_of(number, SHOWN)} is not a number between {least} and {most}")


def _check_payload(_: str, text: object) -> None:
    """Refuse what is not the text of a JSON object, or what jsonb could not store."""
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
        case timedelta() if abs(when.days) > 365_000:
            raise ValueError(f"run_after {when} is beyond the calendar")
        # Between these a time can be read in every time zone.
        case datetime() if not datetime(1, 1, 2, tzinfo=UTC) <= when <= datetime(9999, 12, 30, tzinfo=UTC):
            raise ValueError(f"run_after {when} is beyond the calendar")
        case None | datetime() | timedelta():
            pass
        case _:
            raise ValueError(f"run_after {repr_of(when, SHOWN)} is neither a datetime nor a timedelta")


def _check_key(what: str, key: object) -> None:
    _check_text(what, key, MAX_KEY_BYTES)
    if what == "idempotency_key" and str(key).startswith("schedule:"):  # it would keep a schedule from its job
        raise ValueError(f"idempotency_key {repr_of(key, SHOWN)} begins as those of schedules' jobs do")


def _check_flag(what: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{what} {repr_of(value, SHOWN)} is neither True nor False")  # noqa: TRY004 (one kind of mistake)


def check_metadata(metadata: object) -> None:
    """Refuse, with ValueError, what cannot be metadata."""
    if not isinstance(metadata, Mapping):
        raise ValueError(f"metadata {repr_of(metadata, SHOWN)} are not a dict or another mapping")  # noqa: TRY004
    try:
        text = json.dumps(dict(metadata), ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"metadata {repr_of(metadata, SHOWN)} cannot be written as JSON: {error}") from None
    if (problem := find_problem(text, max_bytes=MAX_METADATA_BYTES)) is not None:
        raise ValueError(f"metadata{''.join(f'.{step}' for step in problem.where)}: {problem.what}")


def copy_metadata(job: JobFields) -> None:
    """Have the job keep its own copy: the caller may change the mapping before the job is sent."""
    if job.metadata is not None:
        object.__setattr__(job, "metadata", json.loads(json.dumps(dict(job.metadata))))


def _check_tags(_: str, tags: object) -> None:
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
        message = f"{what} {repr_of(text, SHOWN)} contains a lone surrogate, which is not Unicode text"
        raise ValueError(message) from None
    if "\0" in text:
        raise ValueError(f"{what} {repr_of(text, SHOWN)} contains the character NUL, which PostgreSQL cannot store")
    if not least <= size <= most:
        shown = repr(text) if size <= most else f"of {size} bytes"
        raise ValueError(f"{what} {shown} does not have {least} to {most} bytes")


_CHECKS: Final[Mapping[str, Callable[[str, Any], None]]] = {
    "kind": check_name, "queue": check_name, "payload": _check_payload, "strict": _check_flag, "tags": _check_tags,
    "priority": partial(check_number, least=-MAX_NUMBER, most=MAX_NUMBER),
    "max_attempts": partial(check_number, least=1, most=MAX_NUMBER),
    "idempotency_key": _check_key, "exclusive_key": _check_key,
    "run_after": lambda _, when: check_run_after(when), "metadata": lambda _, value: check_metadata(value),
}  # fmt: skip
"""How the fields of a job are checked, wherever they are given."""
