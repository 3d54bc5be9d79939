"""Runs the tests on every other Python that we name and that is found here: `make test-pythons`.

`make test` uses one of them. Each of the others gets an environment of its own, `.venv-3.13`, by the same constraints;
one that is missing is named, and does not count as passed. `--quick` runs the newest alone, and of the tests what
could differ between versions: CI has a few minutes for it.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMED = ("3.13", "3.12", "3.11")
"""Newest first, as in pyproject.toml."""
QUICK = (
    "tests/test_app.py",
    "tests/test_arguments.py",
    "tests/test_exports.py",
    "tests/test_outcome.py",
    "tests/test_task.py",
    "tests/test_log_writer.py",
    "tests/worker/test_claiming.py",
    "tests/worker/test_frames.py",
    "tests/worker/test_outcomes.py",
    "tests/worker/test_process.py",
    "tests/worker/test_process_jobs.py",
    "tests/worker/test_telling.py",
    "tests/db/test_link.py",
    "tests/db/test_pool.py",
    "tests/http/test_contract.py",
    "tests/cli/test_jobs.py",
    "tests/sql/test_enqueue.py",
)


def main() -> int:
    arguments = [argument for argument in sys.argv[1:] if argument != "--quick"]
    quick = "--quick" in sys.argv
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    others = list(_found(version for version in NAMED if version != here))
    failed = []
    for version, program in others[:1] if quick else others:
        print(f"Python {version}:", flush=True)
        command = [_environment(version, program), "-m", "pytest", "-q", *arguments, *(QUICK if quick else ())]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(version)
    if failed:
        print(f"failed on Python {', '.join(failed)}")
    return 1 if failed else 0


def _found(versions: Iterator[str]) -> Iterator[tuple[str, str]]:
    for version in versions:
        program = next(filter(_is(version), _candidates(version)), None)
        if program is None:
            print(f"Python {version}: not run, it is not installed here", flush=True)
        else:
            yield version, program


def _candidates(version: str) -> Iterator[str]:
    """Where a Python of this version may be: on the path, or where pyenv and uv keep theirs."""
    if on_path := shutil.which(f"python{version}"):
        yield on_path
    home = Path.home()
    for folder in (Path(os.environ.get("PYENV_ROOT", home / ".pyenv")) / "versions", home / ".local/share/uv/python"):
        yield from (str(found) for found in sorted(folder.glob(f"*{version}*/bin/python3"), reverse=True))


def _is(version: str):
    """Whether a program is a Python of this version that can be run: a shim of pyenv may be there and refuse."""
    code = f"import sys; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"

    def check(program: str) -> bool:
        return subprocess.run([program, "-c", code], capture_output=True, check=False).returncode == 0

    return check


def _environment(version: str, program: str) -> str:
    place = ROOT / f".venv-{version}"
    python = str(place / "bin/python")
    if not (place / "bin/python").exists():
        subprocess.run([program, "-m", "venv", place], check=True)
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", "constraints.txt"]
    subprocess.run([python, *install, "--editable", ".[test]"], cwd=ROOT, check=True)
    return python


if __name__ == "__main__":
    sys.exit(main())
