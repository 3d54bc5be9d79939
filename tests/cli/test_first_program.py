"""The README's first program, pasted as it is; and programs that wait for a job while their worker imports them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.cli.conftest import ENV, leasehold

README = Path(__file__).parents[2] / "README.md"

WAITS = """
from leasehold import App

app = App()


@app.task(kind="SEND")
async def send(to: str) -> str:
    return to


print(send.enqueue(to="ada").result(timeout=600))
"""


def run(folder: Path, *command: str, **env: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *command], cwd=folder, env=ENV | env, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def test_the_first_program_of_the_readme_works_as_it_stands(dsn: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (tmp_path / "mytasks.py").write_text(blocks[0].replace("timeout=10", "timeout=60"))
    worker = run(tmp_path, "-m", "leasehold", "worker", "mytasks:app", LEASEHOLD_DSN=dsn)
    try:
        program = run(tmp_path, "mytasks.py", LEASEHOLD_DSN=dsn)
        said, _ = program.communicate(timeout=90)
        assert program.returncode == 0, said
        assert said.split(maxsplit=1)[1].strip() == "{'delivered': 'a@b.c'}"
    finally:
        worker.terminate()
        said, _ = worker.communicate(timeout=60)
    assert worker.returncode == 0, said
    with psycopg.connect(dsn) as connection:
        assert connection.execute("select queue, state from leasehold.jobs").fetchall() == [("mail", "success")]


@pytest.mark.parametrize("command", [("worker", "waits:app"), ("enqueue", "SEND", "--app", "waits:app")])
def test_a_module_that_waits_for_a_job_while_it_is_imported_is_refused_at_once(
    dsn: str, tmp_path: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    monkeypatch.chdir(tmp_path)
    done = leasehold(*command, LEASEHOLD_DSN=dsn, PYTHONPATH=os.fspath(Path(__file__).parents[2]))
    assert done.returncode == 2, done.stderr
    assert "waits waits for <Job SEND" in done.stderr
    assert 'if __name__ == "__main__":' in done.stderr
    assert "enqueues a job of kind 'SEND' while it is being imported" in done.stderr
    assert "Traceback" not in done.stderr
