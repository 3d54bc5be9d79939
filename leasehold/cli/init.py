"""`leasehold init`: write a first module of tasks."""

from pathlib import Path
from typing import Annotated

import typer

from leasehold.cli.console import answer, say
from leasehold.cli.options import AsJson
from leasehold.errors import ConfigError

_STARTER = '''"""Tasks: functions that workers run, in other processes and on other hosts."""

import asyncio
from datetime import timedelta

from leasehold import App, current_job

app = App()  # LEASEHOLD_DSN, or an embedded PostgreSQL in development


@app.task(kind="GREET", queue="greetings")
async def greet(name: str) -> str:
    """Enqueue it with `greet.enqueue(name="Ada")`, from anywhere that can reach the database."""
    return f"Hello, {name}!"


@app.task(kind="COUNT", lease=15, timeout=60, max_attempts=3)
async def count(to: int) -> int:
    """A longer one: it says how far it is. When its worker dies, another takes over."""
    for number in range(to):
        current_job().progress(number / to, f"{number} of {to}")
        await asyncio.sleep(1)
    return to


@app.schedule(every=timedelta(minutes=1), key="heartbeat")
@app.task(kind="HEARTBEAT")
async def heartbeat() -> None:
    """Runs every minute, once, however many workers there are."""
    current_job().log.info("still here")
'''


def command(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("tasks.py"), *, as_json: AsJson = False
) -> None:
    """Write a file with a few tasks to begin with, and say what to do next. Never overwrites anything."""
    if file.suffix != ".py" or not file.stem.isidentifier():
        raise ConfigError(f"{str(file)!r} is not the name of a Python module", hint="such as tasks.py")
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(_STARTER)
    except FileExistsError:
        raise ConfigError(f"{file} exists already", hint="give another name: leasehold init mytasks.py") from None
    except OSError as error:
        message = f"{file} cannot be written: {error.strerror}"
        raise ConfigError(message, hint="is the folder there, and yours?") from None
    answer({"file": str(file), "app": f"{file.stem}:app"}, file, as_json=as_json)
    say(
        f"wrote {file}; next, in {file.parent.resolve()}:\n"
        f"  leasehold dev {file.stem}:app                           PostgreSQL, a worker, the API and the dashboard\n"
        f"  leasehold enqueue GREET -p name=Ada --wait       in another terminal"
    )
