"""What `import leasehold` offers, and the tree of its exceptions."""

import ast
import inspect
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import leasehold
from leasehold import errors

BRANCH = re.compile(r"^    (?P<indent>(?:[│ ]   )*)(?:[├└]── )?(?P<name>[A-Z]\w+)(?:  |$)")


def offered() -> set[str]:
    return set(leasehold.__all__) - {"__version__"}


def test_everything_offered_is_there_once_and_in_order() -> None:
    assert len(set(leasehold.__all__)) == len(leasehold.__all__)
    assert sorted(leasehold.__all__) == leasehold.__all__
    for name in offered():
        assert getattr(leasehold, name).__name__ == name


def test_the_offer_is_small_enough_to_know_by_heart() -> None:
    assert len(leasehold.__all__) <= 28


def test_nothing_public_is_there_that_is_not_offered() -> None:
    modules = {name for name, value in vars(leasehold).items() if inspect.ismodule(value)}
    assert {name for name in vars(leasehold) if not name.startswith("_")} - modules == offered()


def test_importing_it_imports_nothing_that_only_some_need() -> None:
    wanted = "asyncpg sqlalchemy django typer rich uvloop leasehold.embedded leasehold.worker leasehold.cli"
    code = f"import sys, leasehold; print([name for name in '{wanted}'.split() if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


def test_no_class_name_is_defined_twice() -> None:
    files = Path(leasehold.__file__).parent.rglob("*.py")
    parts = [part for file in files for part in ast.walk(ast.parse(file.read_text()))]
    names = Counter(part.name.lstrip("_") for part in parts if isinstance(part, ast.ClassDef))
    assert len(names) > 100
    assert [name for name, times in names.items() if times > 1] == []


def drawn() -> dict[str, str | None]:
    """Each exception of the drawing with the one it hangs from."""
    tree: dict[str, str | None] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = BRANCH.match(line)
        if found is None:
            continue
        depth = (line.index(found["name"]) - 4) // 4
        above[depth:] = [found["name"]]
        tree[found["name"]] = above[depth - 1] if depth else None
    return tree


def test_the_tree_of_exceptions_is_drawn_as_it_is() -> None:
    classes = {name: cls for name, cls in vars(errors).items() if inspect.isclass(cls)}
    tree = drawn()
    assert len(tree) > 10
    assert set(tree) == set(classes)
    for name, parent in tree.items():
        assert classes[name].__bases__[0] is (classes[parent] if parent else Exception), name


def test_every_exception_says_what_to_do_and_has_an_exit_code() -> None:
    for cls in vars(errors).values():
        if inspect.isclass(cls):
            more: dict[str, Any] = {"reason": "fatal"} if issubclass(cls, errors.JobFailed) else {}
            error = cls("it broke", hint="mend it", **more)
            assert str(error) == "it broke (mend it)"
            assert str(cls("it broke", **more)) == "it broke"
            assert error.exit_code in {1, 2, 3, 4, 70}
            assert cls.__doc__
