"""What mypy says of tasks: right calls pass, wrong ones are errors, results keep their type.

One file is checked once. A line with a mistake ends in `# E: code` (mypy's error code); a line with
reveal_type ends in `# R: type`. What mypy says must be exactly that, line by line.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)

SNIPPETS = """\
from leasehold import App

app = App()


@app.task(kind="SEND_EMAIL")
async def send_email(to: str, subject: str, count: int = 1) -> dict[str, int]:
    return {to: count}


@app.task(kind="RESIZE")
def resize(path: str, *, width: int) -> dict[str, int]:
    return {path: width}


@app.task(kind="TICK")
async def tick() -> None: ...


@app.schedule("0 * * * *", key="resize-hourly", arguments={"path": "a", "width": 1})
@app.task(kind="SHRINK")
def shrink(path: str, *, width: int) -> int:
    return width


@app.schedule("0 * * * *")
async def refresh(full: bool = False) -> int:
    return 1


@app.task
def bare(n: int) -> str:
    return str(n)


@app.task
async def bare_async(n: int) -> str:
    return str(n)


async def direct_calls() -> None:
    reveal_type(resize("a", width=1))  # R: dict[str, int]
    reveal_type(await send_email("a", "b"))  # R: dict[str, int]
    reveal_type(bare(1))  # R: str
    reveal_type(await bare_async(1))  # R: str
    reveal_type(shrink("a", width=1))  # R: int
    reveal_type(await refresh.using(priority=1)(full=True))  # R: int
    bare("a")  # E: arg-type
    bare.enqueue("a")  # E: arg-type
    reveal_type(bare.enqueue(1).result())  # R: str
    resize("a", width=1).lower()  # E: attr-defined


def right_calls() -> None:
    send_email.using(idempotency_key="k", strict=True).enqueue(to="a", subject="b")
    send_email.enqueue(to="a", subject="b")
    send_email.enqueue("a", "b", 3)
    send_email.using(priority=1).enqueue(to="a", subject="b")
    resize.enqueue("a", width=1)
    tick.enqueue()
    shrink.enqueue("a", width=1)
    refresh.enqueue(full=True)


def wrong_calls() -> None:
    send_email.enqueue(to=1, subject="b")  # E: arg-type
    send_email.enqueue("a", "b", "c")  # E: arg-type
    send_email.enqueue(to="a")  # E: call-arg
    send_email.enqueue(to="a", subject="b", too="c")  # E: call-arg
    send_email.using(priority=1).enqueue(to=1, subject="b")  # E: arg-type
    send_email.using(priority=1).enqueue(to="a")  # E: call-arg
    send_email.using(priority="high")  # E: arg-type
    resize.enqueue("a", 1)  # E: call-arg
    resize.enqueue("a", width="b")  # E: arg-type
    tick.enqueue(1)  # E: call-arg
    shrink.enqueue("a", width="b")  # E: arg-type
    refresh.enqueue(full="yes")  # E: arg-type
    app.schedule(5)  # E: arg-type
    app.schedule("0 * * * *", missed="maybe")  # E: arg-type


async def async_calls() -> None:
    await send_email.aenqueue(to="a", subject="b")
    await send_email.using(priority=1).aenqueue(to="a", subject="b")
    await resize.aenqueue("a", width=1)
    await send_email.aenqueue(to=1, subject="b")  # E: arg-type
    await send_email.aenqueue("a")  # E: call-arg
    await resize.aenqueue("a", width=1, depth=2)  # E: call-arg


async def results() -> None:
    mail = send_email.enqueue("a", "b")
    reveal_type(mail.result())  # R: dict[str, int]
    reveal_type(await mail.aresult())  # R: dict[str, int]
    picture = await resize.aenqueue("a", width=1)
    reveal_type(picture.result())  # R: dict[str, int]
    reveal_type(await picture.aresult())  # R: dict[str, int]
    wrong: str = mail.result()  # E: assignment
"""

MARKER = re.compile(r"  # [ER]: (?P<rest>.+)$")
ANSWER = re.compile(r"snippets\.py:(?P<line>\d+): (?P<level>error|note): (?P<text>.*)$")
REVEALED = re.compile(r'Revealed type is "(?P<type>.*)"$')


def expected() -> set[tuple[int, str]]:
    lines = enumerate(SNIPPETS.splitlines(), start=1)
    return {(number, marker["rest"]) for number, line in lines if (marker := MARKER.search(line))}


def said(output: str) -> set[tuple[int, str]]:
    found = set()
    for answer in filter(None, map(ANSWER.search, output.splitlines())):
        if answer["level"] == "error":
            found.add((int(answer["line"]), answer["text"].rpartition("[")[2].removesuffix("]")))
        elif revealed := REVEALED.search(answer["text"]):
            found.add((int(answer["line"]), revealed["type"].replace("builtins.", "")))
    return found


def test_mypy_says_of_calls_and_results_exactly_what_it_should(tmp_path: Path) -> None:
    file = tmp_path / "snippets.py"
    file.write_text(SNIPPETS)
    root = Path(__file__).resolve().parent.parent
    # A cache that outlives the run, but not the project's own: mypy may be running there right now.
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context"]
    command += ["--config-file", str(root / "pyproject.toml"), "--no-pretty", "--no-color-output"]
    command += ["--cache-dir", str(root / ".mypy_cache" / "test_typing"), str(file)]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stdout + run.stderr
    assert said(run.stdout) == expected(), run.stdout
