"""Every place where a producer or an operator can say something: by SQL, Python, HTTP and the command line."""

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID, uuid4

import psycopg

from faults.matrix import says
from faults.matrix.commands import command, program
from faults.matrix.corpus import TEXTS, Raw
from faults.matrix.world import World
from leasehold import App
from leasehold.db.database import Database
from leasehold.errors import LeaseholdError

FIELDS: Final = (
    "payload", "kind", "queue", "key", "exclusive key", "tags", "run at", "run after", "priority", "max attempts",
)  # fmt: skip
"""What a producer says of a job."""

_SQL_NAMES: Final = {
    "kind": "kind", "queue": "queue", "key": "idempotency_key", "exclusive key": "exclusive_key", "tags": "tags",
    "run at": "run_at", "run after": "run_after", "priority": "priority", "max attempts": "max_attempts",
}  # fmt: skip
_CASTS: Final = {
    "tags": "text[]", "run at": "text::timestamptz", "run after": "text::interval", "priority": "text::integer",
    "max attempts": "text::integer",
}  # fmt: skip
_HTTP_NAMES: Final = {
    "payload": "payload", "kind": "jobType", "queue": "queue", "key": "idempotencyKey", "exclusive key": "exclusiveKey",
    "tags": "tags", "run at": "runAt", "priority": "priority", "max attempts": "maxAttempts",
}  # fmt: skip
_CLI_NAMES: Final = {
    "payload": "--payload", "queue": "--queue", "key": "--key", "exclusive key": "--exclusive-key", "tags": "--tag",
    "run at": "--run-at", "run after": "--in", "priority": "--priority", "max attempts": "--max-attempts",
}  # fmt: skip

_OPERATIONS: Final = {
    "cancel why": "select cancel(%(job)s::uuid, why => %(value)s)",
    "pause": "select pause(%(value)s, reason => 'x')",
    "pause reason": "select pause(%(name)s, reason => %(value)s, by => %(value)s)",
    "limit name": "select set_limit('queue', %(value)s, 5)",
    "limit key": "select set_limit('key', %(value)s, 5)",
    "worker name": "select start_worker(%(value)s, 'h', 1, null, array['eat'], array[20]::double precision[], 1)",
    "worker host": "select start_worker(%(name)s, %(value)s, 1, null, array['eat'], array[20]::double precision[], 1)",
    "declared kind": "select declare_kinds(array[%(value)s], array[20]::double precision[])",
    "schedule key": "select schedule_put(%(value)s, 'eat', every => interval '300 days')",
    "schedule kind": "select schedule_put(%(name)s, %(value)s, every => interval '300 days')",
    "schedule cron": "select schedule_put(%(name)s, 'eat', cron => %(value)s)",
    "schedule zone": "select schedule_put(%(name)s, 'eat', cron => '0 0 1 1 *', time_zone => %(value)s)",
    "schedule start": "select schedule_put(%(name)s, 'eat', every => interval '300 days', starts_at => %(value)s::text::timestamptz)",
    "schedule every": "select schedule_put(%(name)s, 'eat', every => %(value)s::text::interval)",
    "token name": "select create_token(gen_random_uuid(), %(value)s, decode(repeat('00', 32), 'hex'), array['submit'])",
    "list filter": "select count(*) from list_jobs(jsonb_build_object('kind', %(value)s::text))",
    "list cursor": "select count(*) from list_jobs('{}', cursor => %(value)s)",
    "log line": "select add_logs('ghost', array[%(job)s::uuid], array[1], array[null]::uuid[],"
    " array[jsonb_build_array(jsonb_build_array(1, 'INFO', %(value)s::text))])",
    "error message": "select fail('ghost', %(job)s::uuid, 1, error => jsonb_build_object('message', %(value)s::text))",
    "progress note": "select heartbeat('ghost', array[%(job)s::uuid], array[1], null, array[0.5]::real[], array[%(value)s::text])",
}
"""What else is said by SQL, by workers in other languages and by operators."""

PRODUCERS: Final[list[str]] = [
    *(f"SQL enqueue: {field}" for field in FIELDS),
    *(f"SQL enqueue_many: {field}" for field in FIELDS),
    *(f"SQL submit: {field}" for field in FIELDS),
    *(f"SQL {operation}" for operation in _OPERATIONS),
    *(f"Python: {field}" for field in FIELDS),
    *(f"HTTP: {field}" for field in _HTTP_NAMES),
    "HTTP: path", "HTTP: query", "HTTP: header",
    *(f"CLI: {field}" for field in _CLI_NAMES),
    "CLI: parameter",
]  # fmt: skip
"""The columns."""

_OURS: Final = ("LH", "22", "54", "0A000")
"""What SQL may refuse with: our own codes, PostgreSQL's for a value that is none of its type or too large."""


_ID: Final = r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
_PRINTED: Final = (bool, int, float, Decimal, datetime, date, timedelta, UUID)

_REALLY: Final = [TEXTS[name] for name in ("emoji", "lone low surrogate", "escape sequences", "newlines", "dash")]
"""Values that a process of its own gets on its command line; the others are said to the same function in this one."""


class Unfit(Exception):
    """This cannot be said there at all."""


class Producers:
    """Says values; raises AssertionError where the answer is not one that a user can understand."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._connection = world.connect()
        self._queue = "poison"
        os.environ["LEASEHOLD_DSN"] = world.server.dsn  # for commands
        says.app._database = Database(world.server.dsn, schema="leasehold")  # noqa: SLF001 (it was made without one)
        self._withdraw: list[str] = []

    def close(self) -> None:
        """Let go of the connections."""
        self._connection.close()
        says.app.close()
        os.environ.pop("LEASEHOLD_DSN", None)

    def say(self, column: str, value: Any) -> str | None:
        """The id of the job that was recorded, or None: it has to come to its end, or to be withdrawn."""
        way, _, field = column.partition(": ")
        try:
            job = self._sayers[way](self, field, value) if way in self._sayers else self._operate(column[4:], value)
        except _RefusedError:
            return None
        except (RecursionError, UnicodeEncodeError, psycopg.DataError) as error:
            if isinstance(error, psycopg.Error) and error.sqlstate:
                raise AssertionError(f"{error.sqlstate}: {error}") from error
            raise Unfit(f"the driver cannot send it: {error}"[:200]) from error
        if job is not None:
            self._world.run.log.ok(self._world.run.log.invoke("enqueue", job=job, kind="eat"), job=job)
            self._withdraw.append(job)
        return job

    def withdraw(self) -> None:
        """What waits for a far time, or for a worker that knows its kind, is cancelled; what is paused goes on."""
        self._world.rows(
            "select cancel(id) from jobs where state in ('created', 'queued', 'retry') and (run_at > clock()"
            " or kind not in ('eat', 'quick', 'hold')) and id = any(%s::uuid[])",
            self._withdraw,
        )
        self._withdraw.clear()
        self._world.rows("select resume(queue) from queues")
        self._world.rows("select drop_limit(scope, name) from limits")
        self._world.rows("select schedule_remove(key) from schedules")
        self._world.rows("delete from tokens where name <> 'matrix'")

    def look(self, job: str) -> str:
        """Whether the job can be looked at; else what went wrong."""
        for path in (f"/jobs/{job}", f"/ops/jobs/{job}"):
            status, text = self._ask("GET", path)
            if status != 200:
                return f"GET {path} answers {status}: {text[:200]}"
        return ""

    # -- SQL

    def _enqueue(self, field: str, value: Any, function: str = "enqueue") -> str:
        if field == "payload":
            return self._run(f"select {function}('eat', %s::text::jsonb, queue => %s)", _payload(value), self._queue)
        cast = f"::{_CASTS[field]}" if field in _CASTS else ""
        said: Any = _text(value) if field != "tags" else [_text(value)]
        if field == "kind":
            return self._run(f"select {function}(%s)", said)
        queue = "" if field == "queue" else f", queue => '{self._queue}'"
        return self._run(f"select {function}('eat'{queue}, {_SQL_NAMES[field]} => %s{cast})", said)

    def _enqueue_many(self, field: str, value: Any) -> str:
        if field == "payload":
            text = f'[{{"kind":"eat","queue":"{self._queue}","payload":{_payload(value)}}}]'
        else:
            said = f"[{_json(value)}]" if field == "tags" else _json(value)
            fixed = {"kind": "eat", "queue": self._queue}
            rest = json.dumps({name: v for name, v in fixed.items() if name != _SQL_NAMES[field]})
            text = f"[{rest[:-1]}{', ' if len(rest) > 2 else ''}{json.dumps(_SQL_NAMES[field])}: {said}}}]"
        return self._run("select enqueue_many(%s::text::jsonb)", text)

    def _submit(self, field: str, value: Any) -> str:
        job = self._enqueue(field, value, "submit")
        self._run("select accept(%s::uuid)", job)
        return job

    def _operate(self, operation: str, value: Any) -> None:
        query = _OPERATIONS[operation]
        job = None
        if "%(job)s" in query:
            queue = str(uuid4())
            self._world.rows("select declare_kinds(array['victim'], array[600]::double precision[])")
            job = self._world.enqueue("victim", queue=queue)
            self._world.rows(
                "select claim('ghost', kinds => array['victim'], queues => array[%s], count => 1, claim_id => %s)",
                queue, uuid4(),
            )  # fmt: skip
        try:
            self._run(query, {"value": _text(value), "name": str(uuid4()), "job": job})
        finally:
            if job is not None:
                self._world.rows("select complete('ghost', array[%s::uuid], array[1])", job)
                self._world.rows("select cancel(%s::uuid)", job)

    def _run(self, query: str, *args: Any) -> Any:
        given = args[0] if len(args) == 1 and isinstance(args[0], dict) else args
        try:
            row = self._connection.execute(query, given).fetchone()  # type: ignore[call-overload]
        except psycopg.Error as error:
            state = error.sqlstate or ""
            if not state:
                raise
            if not state.startswith(_OURS):
                raise AssertionError(f"refused with {state}: {error.diag.message_primary}") from error
            raise _RefusedError from error
        return str(row[0]) if row and isinstance(row[0], UUID) else None

    # -- Python, HTTP, command line

    def _python(self, field: str, value: Any) -> str:
        task = says.eat.using(queue=self._queue)
        try:
            if field == "kind":
                return self._python_kind(value)
            if field == "payload":
                return str(task.enqueue(value=value).id)
            name = {"run at": "run_after"}.get(field, _SQL_NAMES.get(field, field))
            return str(task.using(**{name: [value] if field == "tags" else value}).enqueue().id)
        except (LeaseholdError, TypeError, ValueError) as error:
            raise _RefusedError from error
        except Exception as error:
            raise AssertionError(f"raised {type(error).__name__}: {error}"[:300]) from error

    def _python_kind(self, value: Any) -> str:
        with App(self._world.server.dsn) as app:
            return str(app.task(kind=value)(_nothing).enqueue().id)

    def _http(self, field: str, value: Any) -> str | None:
        if field in ("path", "query", "header"):
            return self._http_around(field, _text(value))
        body = f'{{"jobType":"eat","queue":"{self._queue}"'
        if field == "payload":
            body += f', "payload": {_payload(value)}}}'
        else:
            fixed = {"jobType": "eat", "queue": self._queue}
            rest = json.dumps({name: v for name, v in fixed.items() if name != _HTTP_NAMES[field]})
            body = f'{rest[:-1]}, "{_HTTP_NAMES[field]}": {f"[{_json(value)}]" if field == "tags" else _json(value)}}}'
        status, text = self._ask("POST", "/jobs", body.encode("utf-8", "surrogatepass"))
        assert status < 500, f"answered {status}: {text[:200]}"
        if status >= 300:
            raise _RefusedError
        return str(json.loads(text)["jobId"])

    def _http_around(self, field: str, value: str) -> None:
        encoded = quote(value.encode("utf-8", "surrogatepass"), safe="")[:4000]
        paths = {"path": f"/jobs/{encoded}", "query": f"/ops/jobs?kind={encoded}&after={encoded}&queue={encoded}"}
        try:
            headers = (
                {"Idempotency-Key": value.encode("latin-1", "replace").decode("latin-1")} if field == "header" else {}
            )
            status, text = self._ask("GET", paths.get(field, "/healthz"), headers=headers)
        except ValueError as error:
            raise Unfit(str(error)[:100]) from error
        assert status < 500, f"answered {status}: {text[:200]}"

    def _ask(self, method: str, path: str, body: bytes | None = None, headers: Any = None) -> tuple[int, str]:
        request = urllib.request.Request(  # noqa: S310 (our own server)
            self._world.api.url + path,
            body,
            {"Content-Type": "application/json", "Authorization": f"Bearer {self._world.token}", **(headers or {})},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 (our own server)
                return answer.status, answer.read().decode("utf-8", "replace")
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode("utf-8", "replace")
        except OSError as error:
            raise AssertionError(f"no answer: {error}") from error

    def _cli(self, field: str, value: Any) -> str | None:
        said = _payload(value) if field == "payload" else _text(value)
        if "\0" in said or len(said) > 100_000:
            raise Unfit("no argument of a program can hold it")
        options = ["-p", f"value={said}"] if field == "parameter" else [_CLI_NAMES[field], said]
        queue = [] if field == "queue" else ["--queue", self._queue]
        run = program if type(value) is str and value in _REALLY else command
        code, text = run(["enqueue", "eat", "--anyway", *queue, *options])
        assert "Traceback" not in text, f"a traceback: {text[-300:]}"
        assert code in (0, 1, 2), f"ended with {code}: {text[-200:]}"
        if code:
            raise _RefusedError
        # Beside the id it may be said that the key, which may look like an id, has a job already.
        found = [one[0] for one in re.finditer(_ID, text) if one[0] != said]
        assert found, f"no id: {text[-200:]}"
        return found[0]

    _sayers: Final[dict[str, Callable[["Producers", str, Any], str | None]]] = {
        "SQL enqueue": _enqueue, "SQL enqueue_many": _enqueue_many, "SQL submit": _submit, "Python": _python,
        "HTTP": _http, "CLI": _cli,
    }  # fmt: skip


class _RefusedError(Exception):
    """The value was refused in a way that a user can understand."""


def _nothing() -> None:
    """A task."""


def _text(value: Any) -> str:
    """As text: numbers and times as they are printed."""
    if type(value) is str:
        return value
    if type(value) not in _PRINTED:
        raise Unfit("only text, a number or a time can be said there")
    try:
        return str(value)
    except ValueError as error:
        raise Unfit(f"cannot be printed: {error}"[:100]) from error


def _json(value: Any) -> str:
    if isinstance(value, Raw):
        return value
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise Unfit(f"no JSON: {error}"[:100]) from error


def _payload(value: Any) -> str:
    """The JSON text of a payload that holds the value; what is JSON text is the payload itself."""
    return str(value) if isinstance(value, Raw) else f'{{"value": {_json(value)}}}'
