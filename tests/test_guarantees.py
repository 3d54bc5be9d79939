"""Every promise in docs/guarantees.md names where it is shown, and that is there."""

import ast
import re
from pathlib import Path

import pytest

from faults.scenarios import SCENARIOS

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs/guarantees.md").read_text()
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)))
PROMISES = TEXT.partition("## Not promised")[0].split("- **")[1:]


def functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("file", sorted({file for file, _ in TESTS}))
def test_every_test_that_is_named_exists(file):
    assert {name for other, name in TESTS if other == file} - functions(ROOT / file) == set()


def test_every_scenario_that_is_named_exists():
    named = set(re.findall(r"`faults (\w+)`", TEXT)) - {"NAME"}
    assert named
    assert named - set(SCENARIOS) == set()


def test_every_promise_names_where_it_is_shown():
    assert len(PROMISES) > 25
    assert [promise.split("**")[0] for promise in PROMISES if not re.search(r"`(tests/|faults \w)", promise)] == []


def test_nothing_looks_like_a_test_without_being_checked():
    assert len(re.findall("::", TEXT)) == len(re.findall(r"`tests/[\w/]+\.py::\w+`", TEXT)) + 1  # `file::name`
