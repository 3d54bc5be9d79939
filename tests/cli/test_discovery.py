"""Apps that are found: in a package with its modules of tasks, and by a shell that completes a command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leasehold.cli.running import load_app
from leasehold.errors import ConfigError
from tests.cli.conftest import ENV

APP = "from leasehold import App\n\napp = App()\n"
TASK = "from {package}.app import app\n\n\n@app.task(kind='{kind}', queue='{kind}s')\ndef run() -> None: ...\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with an app, tasks in several places, and modules that must not be imported."""
    name = f"shop_{tmp_path.name.replace('-', '_')}"
    root = tmp_path / name
    for folder in ("mail", "billing/tasks", "tests"):
        (root / folder).mkdir(parents=True)
        (root / folder / "__init__.py").write_text("")
    (root / "billing/__init__.py").write_text("")
    (root / "__init__.py").write_text("")
    (root / "app.py").write_text(APP)
    for file, kind in {
        "tasks.py": "top", "mail/tasks.py": "mail", "billing/tasks/charge.py": "charge", "tests/tasks.py": "tested",
    }.items():  # fmt: skip
        (root / file).write_text(TASK.format(package=name, kind=kind))
    (root / "mail/settings.py").write_text("raise RuntimeError('this was not asked for')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("LEASEHOLD_DSN", "postgresql://unknown.invalid/x")
    return name


@pytest.mark.parametrize("form", ["{}", "{}:app", "{}.app:app"])
def test_a_package_brings_the_tasks_of_its_modules(package: str, form: str) -> None:
    if form == "{}:app":
        Path(package, "__init__.py").write_text(f"from {package}.app import app\n")
    app = load_app(form.format(package))
    assert set(app.tasks) == (set() if "." in form else {"top", "mail", "charge"})
    app.discover(package)
    assert set(app.tasks) == {"top", "mail", "charge"}


def test_a_package_with_two_apps_is_ambiguous(package: str) -> None:
    Path(package, "mail/tasks.py").write_text(APP)
    with pytest.raises(ConfigError, match="has 2 Apps"):
        load_app(package)


def test_a_worker_without_tasks_says_so(cli, tmp_path: Path, dsn: str) -> None:
    (tmp_path / "bare.py").write_text(APP)
    with subprocess.Popen(
        [sys.executable, "-m", "leasehold", "worker", "bare:app"], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        env=ENV | {"LEASEHOLD_DSN": dsn, "PYTHONPATH": os.fspath(Path(__file__).parents[2])},
    ) as worker:  # fmt: skip
        assert worker.stderr is not None
        lines = []
        for line in worker.stderr:
            lines.append(line)
            if "has no tasks" in line:
                break
        worker.kill()
    assert "bare:app has no tasks" in lines[-1]


def offered(folder: Path, *words: str, **env: str) -> list[str]:
    """What bash would offer for the last word."""
    completing = {
        "_LEASEHOLD_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(["leasehold", *words]),
        "COMP_CWORD": str(len(words)), "PYTHONPATH": os.fspath(Path(__file__).parents[2]),
    }  # fmt: skip
    program = "from leasehold.cli import main; import sys; sys.argv[0] = 'leasehold'; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=ENV | completing | env, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.split()


def test_a_shell_is_offered_values(sql, dsn: str, tmp_path: Path) -> None:
    sql(
        "select start_worker('w1', queues => '{mail,reports}', kinds => '{SEND,SHRINK,REPORT}',"
        " lease_seconds => '{9,9,9}')"
    )
    (tmp_path / "mytasks.py").write_text(APP)
    env = {"LEASEHOLD_DSN": dsn}
    assert offered(tmp_path, "enqueue", "S", **env) == ["SEND", "SHRINK"]
    assert offered(tmp_path, "jobs", "list", "--state", "r", **env) == ["running", "retry"]
    assert offered(tmp_path, "jobs", "list", "--queue", "m", **env) == ["mail"]
    assert offered(tmp_path, "worker", "my") == ["mytasks:app"]
    assert offered(tmp_path, "enqueue", "S", LEASEHOLD_DSN="postgresql://127.0.0.1:1/none") == []
    assert offered(tmp_path, "enqueue", "S") == []
    assert not (tmp_path / ".leasehold").exists(), "completing a word starts no server"
