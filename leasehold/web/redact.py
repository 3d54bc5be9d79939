"""Fields of payloads and results that nobody shall read over a shoulder."""

import json
from collections.abc import Set
from typing import Any, Final

HIDDEN: Final = "•••"
"""What is shown instead of a value."""

_DEEPEST: Final = 100


def hide(value: Any, names: Set[str], depth: int = 0) -> Any:
    """The value with each named field hidden, at any depth. Names are compared without regard to case."""
    if depth > _DEEPEST or not names:
        return value
    if isinstance(value, dict):
        return {
            name: HIDDEN if name.casefold() in names else hide(inner, names, depth + 1) for name, inner in value.items()
        }
    if isinstance(value, list):
        return [hide(inner, names, depth + 1) for inner in value]
    return value


def restore(edited: Any, original: Any) -> Any:
    """The edited value, with what was left hidden put back from the original at the same place."""
    if edited == HIDDEN:
        return original
    if isinstance(edited, dict) and isinstance(original, dict):
        return {name: restore(inner, original.get(name, inner)) for name, inner in edited.items()}
    if isinstance(edited, list) and isinstance(original, list):
        rest = [None] * max(0, len(edited) - len(original))
        return [
            inner if before is None else restore(inner, before)
            for inner, before in zip(edited, [*original, *rest], strict=False)
        ]
    return edited


def pretty(text: str | None, names: Set[str]) -> str | None:
    """JSON text to look at: indented, its numbers as they were written, named fields hidden."""
    if text is None:
        return None
    value = json.loads(text, parse_float=_Literal, parse_int=_Literal)
    return _dumps(hide(value, names))


class _Literal(float):
    """A number that keeps its own text: Python's numbers are not JSON's."""

    def __new__(cls, text: str) -> "_Literal":
        made = super().__new__(cls, text)
        made.text = text
        return made

    text: str


def _dumps(value: Any, indent: str = "") -> str:
    deeper = indent + "  "
    if isinstance(value, dict) and value:
        inner = ",\n".join(
            f"{deeper}{json.dumps(name, ensure_ascii=False)}: {_dumps(item, deeper)}" for name, item in value.items()
        )
        return f"{{\n{inner}\n{indent}}}"
    if isinstance(value, list) and value:
        inner = ",\n".join(f"{deeper}{_dumps(item, deeper)}" for item in value)
        return f"[\n{inner}\n{indent}]"
    if isinstance(value, _Literal):
        return value.text
    return json.dumps(value, ensure_ascii=False)
