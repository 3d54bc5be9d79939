"""The fields of a job: options of `enqueue` that set them, options that filter by them, and how they are printed."""

import json
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from typer import Option

from leasehold.cli.completion import among, kinds, queues
from leasehold.cli.console import api_names, shown, when
from leasehold.cli.options import Command, arguments, length, moment, moment_or_ago, with_options
from leasehold.db.store import JobRow
from leasehold.errors import ConfigError
from leasehold.operate.jobs import STATES, ShownJob


def _option(kind: Any, *names: str, **more: Any) -> Any:
    return Annotated[kind | None, Option(*names, **more)]


_FIELDS: Mapping[str, Any] = {
    "queue": _option(str, "--queue", "-q", help="Where it waits.", autocompletion=queues),
    "priority": _option(int, "--priority", help="Higher is more urgent."),
    "max_attempts": _option(int, "--max-attempts", help="How many failures end it."),
    "run_at": _option(str, "--run-at", help="Not before: 2030-01-31T12:00:00Z."),
    "delay": _option(str, "--in", help="Not before this time is over: 5m."),
    "idempotency_key": _option(str, "--key", help="Idempotency key: at most one job of it, ever."),
    "exclusive_key": _option(str, "--exclusive-key", help="At most one job of this key runs at a time."),
    "tags": _option(list[str], "--tag", help="For people to find it by; several times."),
    "metadata": _option(
        list[str], "--metadata", metavar="NAME=TEXT|NAME:=JSON", help="Of the call, such as a trace; several times."
    ),
}
"""The options by the names of the fields of an intent; `run_at` and `delay` become its `run_after`."""

_FILTERS: Mapping[str, Any] = {
    "state": _option(
        list[str], "--state", "-s", help=f"{', '.join(STATES)}; several times.", autocompletion=among(*STATES)
    ),
    "kind": _option(list[str], "--kind", "-k", help="Jobs of this kind.", autocompletion=kinds),
    "queue": _option(list[str], "--queue", "-q", help="Jobs of this queue.", autocompletion=queues),
    "tag": _option(list[str], "--tag", help="Jobs with this tag."),
    "metadata": _option(
        list[str], "--metadata", metavar="KEY=VALUE", help="Jobs whose metadata have this; several times: all of them."
    ),
    "exclusive_key": _option(list[str], "--exclusive-key", help="Jobs with this exclusive key."),
    "error_class": _option(
        list[str], "--error", help="Jobs whose latest recorded attempt ended with this class of error."
    ),
    "created_after": _option(list[str], "--since", help="Created since: 15m, 2h, or 2030-01-31T12:00:00Z."),
    "created_before": _option(list[str], "--before", help="Created before: 15m (ago), or a time."),
}
"""The options by the names that a filter has in SQL."""

_TIMES = {"created_after": "--since", "created_before": "--before"}
_OPTIONS = {**_TIMES, "error_class": "--error"}


def filtered(*, without: Collection[str] = ()) -> Callable[[Command], Command]:
    """Add the options that choose jobs; the command gets the filter as its argument `wanted`."""
    options = {name: kind for name, kind in _FILTERS.items() if name not in without}
    return with_options("wanted", options, lambda _stack, given: _filter(given))


def _fields(given: dict[str, Any]) -> dict[str, Any]:
    run_at, delay = given.pop("run_at", None), given.pop("delay", None)
    if run_at is not None and delay is not None:
        raise ConfigError("--run-at does not go with --in", hint="leave one of them out")
    if run_at is not None:
        given["run_after"] = moment(run_at, option="--run-at")
    if delay is not None:
        given["run_after"] = length(delay, option="--in")
    if "metadata" in given:
        given["metadata"] = arguments(given["metadata"], "--metadata") or None
    return {**given, "tags": tuple(given.get("tags", ()))}


with_fields = with_options("fields", _FIELDS, lambda _stack, given: _fields(given))
"""Adds the options that set fields; the command gets the fields of the intent as its argument `fields`."""


def _filter(given: dict[str, Any]) -> dict[str, Any]:
    for name, values in given.items():
        option = _OPTIONS.get(name) or f"--{name.replace('_', '-')}"
        if name == "state":
            for state in values:
                if state not in STATES:
                    raise ConfigError(f"state {state!r} unknown", hint=f"known: {', '.join(STATES)}")
            given[name] = list(dict.fromkeys(values))
            continue
        for value in values:
            if value == "" or "\0" in value:
                raise ConfigError(f"{option} {value!r} is no name", hint="leave the option out for all")
        if name == "metadata":
            given[name] = _pairs(values)
        elif len(values) > 1:
            shown_values = ", ".join(map(repr, values[:5]))
            raise ConfigError(f"{option} is given {len(values)} times: {shown_values}", hint="give it once")
        else:
            [value] = values
            given[name] = moment_or_ago(value, option=option).isoformat() if name in _TIMES else value
    return given


def _pairs(values: list[str]) -> list[str]:
    """Return the pairs, all of which must hold; refuse two values of one key, which no job has."""
    pairs = list(dict.fromkeys(values))
    keys = [pair.partition("=")[0] for pair in pairs]
    for pair, key in zip(pairs, keys, strict=True):
        if not key or "=" not in pair:
            raise ConfigError(f"--metadata {pair!r} is not key=value", hint="write --metadata trace=4bf92f")
        if keys.count(key) > 1:
            raise ConfigError(f"--metadata gives {key!r} two values, which no job has", hint="give one of them")
    return pairs


def note(job: JobRow) -> str:
    """Return what a list says about a job in its state."""
    match job.state:
        case "running":
            return ", ".join(filter(None, [f"worker {job.lease_owner}", _progress(job)]))
        case "queued" if job.parked:
            return f"waits for {job.exclusive_key}"
        case "created" if not job.accepted:
            return "not accepted"
        case "created" | "retry":
            error = f", {job.error_class}" if job.error_class else ""
            return f"from {when(job.run_at)}{error}"
        case "dead":
            return ", ".join(filter(None, [job.reason, job.error_class]))
        case _:
            return ""


def _progress(job: JobRow) -> str:
    return "" if job.progress is None else f"{job.progress:.0%} {job.progress_note or ''}".strip()


def detail_json(found: ShownJob) -> dict[str, Any]:
    """Return everything about a job as the HTTP API writes it."""
    detail = found.detail
    return {
        **api_names(detail.job),
        "idempotency_key": detail.idempotency_key,
        "reason_detail": detail.reason_detail,
        "payload": json.loads(detail.payload or "null"),
        "result": None if detail.result is None else json.loads(detail.result),
        "attempts": detail.attempts,
        "logs": found.logs,
        "reasons": found.obstacles,
    }


def detail_lines(found: ShownJob) -> list[str]:
    """Return everything about a job, in lines."""
    detail, job = found.detail, found.detail.job
    facts: dict[str, object] = {
        "id": job.id,
        "kind": job.kind,
        "queue": job.queue,
        "state": f"{job.state} ({job.status})" + (", parked" if job.parked else ""),
        "reason": ": ".join(filter(None, [job.reason, detail.reason_detail])),
        "priority": job.priority,
        "attempts": f"{job.attempt}, failures {job.retry_count} of {job.max_attempts}",
        "lease": f"worker {job.lease_owner} until {when(job.lease_expires_at)}" if job.lease_owner else "",
        "progress": _progress(job),
        "created": when(job.created_at),
        "may run from": when(job.run_at),
        "claimed": when(job.claimed_at) if job.claimed_at else "",
        "finished": when(job.finished_at) if job.finished_at else "",
        "idempotency key": detail.idempotency_key,
        "exclusive key": job.exclusive_key,
        "tags": ", ".join(job.tags or ()),
        "metadata": "" if job.metadata is None else json.dumps(job.metadata),
        "payload": detail.payload,
        "result": detail.result,
    }
    lines = [f"{name:<16} {shown(str(value))}" for name, value in facts.items() if value not in (None, "")]
    reasons = [reason for reason in found.obstacles if reason.reason not in ("finished", "running")]
    lines += [f"{'not running':<16} {shown(reason.detail)}" for reason in reasons]
    for attempt in detail.attempts:
        error = ": ".join(filter(None, [attempt.error_class, attempt.error_message]))
        times = f"{when(attempt.claimed_at)} to {when(attempt.ended_at)}"
        lines += ["", f"attempt {attempt.attempt}, {attempt.outcome}, {times}, worker {attempt.worker}"]
        lines += [f"  {shown(line)}" for line in (attempt.error_traceback or error).splitlines()]
    for log in found.logs:
        lines += ["", f"said in attempt {log.attempt}"]
        lines += [f"  {shown(' '.join(_log_line(line)))}" for line in log.lines]
    return lines


def _log_line(line: list[Any]) -> list[str]:
    at, *rest = line or [""]
    if isinstance(at, int | float) and 0 <= at < 1e11:
        at = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return [str(at), *map(str, rest)]
