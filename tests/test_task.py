"""What `@app.task` makes of a function, and what it refuses."""

import functools
import subprocess
import sys
import types
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from leasehold import App, ConfigError, InvalidArguments, InvalidJob, NoRetry, Task
from leasehold.errors import UnknownKind


def nothing() -> None: ...


@pytest.fixture
def app() -> App:
    return App("postgresql://unknown.invalid/x")  # nothing here speaks to it


@pytest.fixture
def send(app: App) -> Task[Any, Any]:
    @app.task(kind="SEND", queue="mail", priority=3, max_attempts=7)
    async def send(to: str, count: int = 1) -> int:
        """Send it."""
        return count

    return send


def test_a_task_is_still_its_function(app: App) -> None:
    @app.task()
    def double(n: int) -> int:
        """Twice."""
        return 2 * n

    assert double(21) == 42
    assert (double.__doc__, double.__name__) == ("Twice.", "double")
    assert double.__wrapped__ is double.function


async def test_a_coroutine_function_stays_one(send: Task[Any, Any]) -> None:
    assert await send("a", count=5) == 5


def test_what_is_declared_is_what_its_jobs_get(app: App, send: Task[Any, Any]) -> None:
    intent = send.intent("a", count=2)
    assert (intent.kind, intent.payload) == ("SEND", '{"to":"a","count":2}')
    assert (intent.queue, intent.priority, intent.max_attempts) == ("mail", 3, 7)
    assert (intent.run_after, intent.idempotency_key, intent.exclusive_key, intent.tags) == (None, None, None, ())
    assert app.tasks == {"SEND": send}
    assert repr(send) == "<Task SEND>"


def test_using_wins_over_what_is_declared_and_changes_nothing_else(send: Task[Any, Any]) -> None:
    later = datetime(2077, 1, 1, tzinfo=UTC)
    other = send.using(queue="bulk", priority=0, tags=["a"]).using(max_attempts=1, run_after=later, exclusive_key="e")
    intent = other.using(idempotency_key="k", tags=("b", "c")).intent("a")
    assert (intent.queue, intent.priority, intent.max_attempts, intent.run_after) == ("bulk", 0, 1, later)
    assert (intent.idempotency_key, intent.exclusive_key, intent.tags) == ("k", "e", ("b", "c"))
    assert other.intent("a").idempotency_key is None
    assert other.intent("a").tags == ("a",)
    plain = send.intent("a")
    assert (plain.queue, plain.priority, plain.max_attempts, plain.tags) == ("mail", 3, 7, ())
    assert other.kind == "SEND"
    assert send.using().intent("a") == plain


def test_the_tasks_of_an_app_can_only_be_looked_at(app: App, send: Task[Any, Any]) -> None:
    with pytest.raises(TypeError):
        app.tasks["OTHER"] = send  # type: ignore[index]


def test_wrong_arguments_are_refused_at_once(send: Task[Any, Any]) -> None:
    with pytest.raises(
        InvalidArguments, match=r"SEND: missing argument 'to'; unknown argument 'too'; known: to, count"
    ):
        send.intent(too="a")


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"run_after": datetime(2030, 1, 1)}, r"SEND: run_after 2030-01-01 00:00:00 has no time zone; use datetime"),  # noqa: DTZ001
        ({"run_after": 60}, "run_after 60 is neither"),
        ({"run_after": timedelta.max}, "calendar"),
        ({"priority": 40_000}, "priority 40000"),
        ({"max_attempts": 0}, "max_attempts 0"),
        ({"queue": ""}, "queue ''"),
        ({"tags": "urgent"}, "tags 'urgent' are not a tuple of texts"),
        ({"idempotency_key": ""}, "idempotency_key ''"),
    ],
)
def test_wrong_wishes_are_refused(send: Task[Any, Any], wishes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        send.using(**wishes).intent("a")


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"kind": ""}, "kind ''"),
        ({"kind": "k" * 201}, "kind of 201 bytes"),
        ({"kind": Unprintable()}, r"kind <Unprintable, whose repr\(\) raised RuntimeError> is not a text"),
        ({"queue": ""}, "queue ''"),
        ({"queue": None}, "queue None is not a text"),
        ({"priority": None}, "priority None"),
        ({"max_attempts": None}, "max_attempts None"),
        ({"lease": None}, "lease: None"),
        ({"priority": 99_999}, "priority 99999"),
        ({"max_attempts": 0}, "max_attempts 0"),
        ({"lease": 0.9}, "lease 0.9 s is not between 1 and 86400 s"),
        ({"lease": timedelta(days=2)}, "lease 172800.0 s"),
        ({"lease": "15"}, "lease: '15' is not a length of time"),
        ({"lease": -1}, "lease: -1 is no length of time"),
        ({"timeout": 0}, "timeout 0.0 s is not positive"),
        ({"timeout": float("nan")}, "timeout: nan"),
        ({"executor": "loop"}, r"executor 'loop' cannot run the def .*<locals>\.job \('thread' and"),
        ({"executor": "fibre"}, "executor 'fibre' cannot run"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(app: App, declared: dict[str, Any], words: str) -> None:
    def job() -> None: ...

    with pytest.raises(ConfigError, match=words):
        app.task(**declared)(job)
    assert app.tasks == {}


def test_an_async_function_runs_on_the_loop_and_no_other_does(app: App) -> None:
    async def job() -> None: ...

    assert app.task(executor="loop")(job).options.executor == app.task()(job).options.executor == "loop"
    assert app.task(kind="B")(nothing).options.executor == "thread"
    with pytest.raises(ConfigError, match="executor 'thread' cannot run the async def"):
        app.task(kind="C", executor="thread")(job)


class Callee:
    def __call__(self) -> None: ...


def yielding() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("thing", [functools.partial(print), Callee(), Callee, 5, yielding])
def test_what_is_no_plain_function_is_no_task(app: App, thing: Any) -> None:
    with pytest.raises(ConfigError, match=r"a task is a function, not|is a generator function"):
        app.task(kind="K")(thing)


def test_lengths_of_time_and_policies_are_kept(app: App) -> None:
    policy = NoRetry()

    @app.task(lease=timedelta(minutes=1), timeout=5, retry=policy)
    def job() -> None: ...

    assert (job.options.lease, job.options.timeout, job.options.retry) == (60.0, 5.0, policy)


def test_one_kind_is_one_task_and_both_places_are_named(app: App, send: Task[Any, Any]) -> None:
    with pytest.raises(ConfigError, match="kind 'SEND' is registered twice") as caught:

        @app.task(kind="SEND")
        def other() -> None: ...

    said = str(caught.value)
    for function in ("send.<locals>.send", "<locals>.other"):
        assert function in said
    assert said.count(f"{Path(__file__).name}, line ") == 2
    assert app.find("SEND") is send


def test_the_same_function_may_be_registered_again(app: App, send: Task[Any, Any]) -> None:
    again = app.task(kind="SEND", queue="other")(send.function)
    assert app.find("SEND") is again


def test_an_unknown_kind_lists_the_known_ones(app: App, send: Task[Any, Any]) -> None:
    app.task(kind="mail")(nothing)
    with pytest.raises(UnknownKind, match=r"kind 'mial' unknown \(known: SEND, mail\)"):
        app.find("mial")
    with pytest.raises(UnknownKind, match="known: none"):
        App("x").find("mial")


def test_a_kind_is_module_and_name_unless_it_is_given(app: App) -> None:
    def plain() -> None: ...

    plain.__module__, plain.__qualname__ = "shop.mail", "Mailer.send"
    assert app.task()(plain).kind == "shop.mail.Mailer.send"


SCRIPT = """
from leasehold import App
app = App("x")
@app.task()
def send() -> None: ...
print(send.kind)
"""


@pytest.mark.parametrize("how", ["shop.py", "-m shop", "-m shop.mail", "-m cart", "-c"])
def test_a_script_gives_its_tasks_the_kind_that_a_worker_imports_them_by(tmp_path: Path, how: str) -> None:
    (tmp_path / "shop.py").write_text(SCRIPT)
    expected = "shop.send"
    if how == "-m shop.mail":
        (tmp_path / "shop.py").unlink()
        (tmp_path / "shop").mkdir()
        (tmp_path / "shop" / "mail.py").write_text(SCRIPT)
        expected = "shop.mail.send"
    if how == "-m cart":
        (tmp_path / "cart").mkdir()
        (tmp_path / "cart" / "__main__.py").write_text(SCRIPT)
        expected = "cart.__main__.send"
    arguments = ["-c", SCRIPT] if how == "-c" else how.split()
    expected = "__main__.send" if how == "-c" else expected
    done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == expected


def test_a_module_that_is_reloaded_cannot_be_distinguished_and_is_refused(app: App) -> None:
    """Two functions of one name are two functions: which of them shall run cannot be known."""
    for _ in range(2):
        module = types.ModuleType("shop")
        exec("def send() -> None: ...", module.__dict__)  # noqa: S102
        if not app.tasks:
            app.task()(module.send)
    with pytest.raises(ConfigError, match=r"shop\.send .* and shop\.send"):
        app.task()(module.send)
