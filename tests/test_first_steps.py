"""What a first user writes, and what we say to what cannot work."""

import asyncio
import inspect
import subprocess
import sys
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from leasehold import App, ConfigError, IdempotencyConflict, InvalidArguments, InvalidJob, Task
from leasehold.config import Settings
from leasehold.errors import NotPermitted


@pytest.fixture
def unused() -> App:
    return App("postgresql://unknown.invalid/x")  # nothing here speaks to it


@pytest.fixture
def app(dsn: str) -> Iterator[App]:
    with App(dsn) as app:
        yield app


@pytest.fixture
def send(app: App) -> Task[Any, Any]:
    @app.task
    async def send(to: str) -> str:
        return to

    return send


def test_a_bare_decorator_makes_a_task(unused: App) -> None:
    @unused.task
    def double(n: int) -> int:
        return 2 * n

    assert double(21) == 42
    assert double.kind == f"{__name__}.{test_a_bare_decorator_makes_a_task.__qualname__}.<locals>.double"
    assert double.options.queue == "default"
    assert unused.tasks == {double.kind: double}


def test_the_defaults_of_using_can_be_read(send: Task[Any, Any]) -> None:
    shown = str(inspect.signature(send.using))
    assert "queue: str = UNSET" in shown
    assert "object at" not in shown


# -- what is no task


class Mailer:
    def send(self, to: str) -> None: ...

    @classmethod
    def make(cls, to: str) -> None: ...

    @staticmethod
    def plain(to: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda to: to, "not a lambda (write it with def)"),
        (Mailer().send, "Mailer.send is a method, and a worker has no object"),
        (Mailer.send, "Mailer.send is a method, and a worker has no object"),
        (Mailer.make, "Mailer.make is a method, and a worker has no object"),
    ],
    ids=["lambda", "bound", "in the class", "classmethod"],
)
def test_what_a_worker_could_not_call_is_refused(unused: App, function: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        unused.task(kind="K")(function)
    assert message in str(refused.value)
    assert unused.tasks == {}


def test_a_static_method_is_a_function(unused: App) -> None:
    assert unused.task(kind="K")(Mailer.plain).kind == "K"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((1, 2), "a tuple would be read back as a list"),
        ({1}, "a set would be read back as a list"),
        (b"x", "a bytes would be read back as a str"),
        (datetime.now(UTC), "a datetime would be read back as a str"),
        ({"deep": [(1,)]}, "a tuple would be read back as a list"),
    ],
    ids=["tuple", "set", "bytes", "datetime", "deep"],
)
def test_what_would_come_back_changed_is_refused_with_the_cure(unused: App, value: Any, message: str) -> None:
    @unused.task(kind="K")
    def untyped(value, more: dict[str, Any] | None = None) -> None: ...  # type: ignore[no-untyped-def]

    for arguments in ({"value": value}, {"value": 1, "more": {"x": value}}):
        with pytest.raises(InvalidArguments) as refused:
            untyped.intent(**arguments)
        assert message in str(refused.value)
        assert "annotate the parameter with what it is, or send plain JSON values" in str(refused.value)
    plain = {"a": [1, 2.5, None, True, {"b": "c"}]}
    assert untyped.arguments.decode(untyped.intent(value=plain).payload) == {"value": plain}


def test_enqueue_many_says_what_it_takes(app: App, send: Task[Any, Any]) -> None:
    job = send.enqueue(to="a")
    with pytest.raises(InvalidJob) as refused:
        app.enqueue_many([send.intent(to="a"), job])  # type: ignore[list-item]
    assert f"enqueue_many takes intents, not {job!r} (item 1)" in str(refused.value)
    assert "task.intent(…) makes one" in str(refused.value)
    for wrong in (send.intent(to="a"), 5):
        with pytest.raises(InvalidJob, match="several of them in a list"):
            app.enqueue_many(wrong)  # type: ignore[arg-type]


# -- connections


@pytest.mark.parametrize(
    ("dsn", "plain"),
    [
        ("postgresql+asyncpg://u:p%40@h:1/d", "postgresql://u:p%40@h:1/d"),
        ("postgresql+psycopg2://h/d?sslmode=require", "postgresql://h/d?sslmode=require"),
        ("postgresql+asyncpg://h/d?ssl=require&application_name=a", "postgresql://h/d?sslmode=require&application_name=a"),
        ("postgresql://h/d?options=-csearch_path%3Da", "postgresql://h/d?options=-csearch_path%3Da"),
        ("host=h dbname=a+b://c", "host=h dbname=a+b://c"),
    ],
)  # fmt: skip
def test_a_dsn_of_sqlalchemy_is_understood(dsn: str, plain: str) -> None:
    assert Settings.from_env(dsn=dsn).dsn == plain


def test_a_parameter_that_libpq_does_not_know_is_named_without_its_value() -> None:
    with pytest.raises(ConfigError) as refused:
        App("postgresql+asyncpg://u:secret@h/d?prepared_statement_cache_size=0&application_name=a").database  # noqa: B018
    assert "knows no parameter 'prepared_statement_cache_size'" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_the_client_without_httpx_says_what_to_install() -> None:
    code = "import sys; sys.modules['httpx'] = None; import leasehold.client"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "leasehold.client needs httpx: pip install 'leasehold[client]'" in done.stderr
    assert done.stderr.count("Traceback") == 1


def test_a_blocking_enqueue_in_a_coroutine_warns_with_the_cure_at_its_own_line(send: Task[Any, Any]) -> None:
    async def handler() -> None:
        send.enqueue(to="a")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(handler())
        send.enqueue(to="a")  # no loop here
        asyncio.run(send.aenqueue(to="a"))
    [warned] = caught
    assert "blocks the event loop" in str(warned.message)
    assert "aenqueue" in str(warned.message)
    assert warned.filename == __file__


# -- keys


def test_a_job_says_whether_it_was_created_now(app: App, send: Task[Any, Any]) -> None:
    keyed = send.using(idempotency_key="k")
    assert send.enqueue(to="a").created is True
    first, second = keyed.enqueue(to="a"), asyncio.run(keyed.aenqueue(to="a"))
    assert (first.created, second.created) == (True, False)
    assert first.id == second.id
    many = app.enqueue_many([keyed.intent(to="a"), send.intent(to="a"), send.using(idempotency_key="n").intent(to="a")])
    assert [job.created for job in many] == [False, True, True]
    assert [job.created for job in app.enqueue_many([send.intent(to="a")])] == [True]
    assert app.job(first.id).created is None


def test_strict_keys_refuse_other_arguments(app: App, send: Task[Any, Any]) -> None:
    keyed = send.using(idempotency_key="k", strict=True)
    assert keyed.enqueue(to="a").id == keyed.enqueue(to="a").id
    with pytest.raises(IdempotencyConflict):
        keyed.enqueue(to="b")
    with pytest.raises(IdempotencyConflict):
        app.enqueue_many([send.intent(to="c"), keyed.intent(to="b")])
    assert send.using(idempotency_key="k").enqueue(to="b").created is False
    [same] = app.enqueue_many([keyed.intent(to="a")])
    assert same.created is False


def test_not_permitted_names_the_roles_that_may(unused: App) -> None:
    from leasehold.db.sqlstates import translate  # noqa: PLC0415

    class Refused(Exception):
        sqlstate = "42501"

    def said_of(message: str) -> str:
        meaning = translate(Refused(message))
        assert isinstance(meaning, NotPermitted)
        return meaning.hint or ""

    hint = said_of("keine Berechtigung für Funktion retry_v1")
    assert hint == "only leasehold_operator and leasehold_api may call retry: grant one of them to the login"
    assert said_of("permission denied for function claim_v1") == (
        "only leasehold_worker may call claim: grant that role to the login"
    )
    assert "leasehold_producer" in said_of("permission denied for schema leasehold")
