"""Fields of payloads, metadata and results that the dashboard hides."""

import json
import re
from collections.abc import Set
from typing import Any, Final

HIDDEN: Final = "•••"
"""What is shown instead of a value."""


def hide(value: Any, names: Set[str]) -> Any:
    """Return the value with each named field hidden, at any depth. Names are compared without regard to case."""
    if isinstance(value, dict):
        return {name: HIDDEN if name.casefold() in names else hide(inner, names) for name, inner in value.items()}
    return [hide(inner, names) for inner in value] if isinstance(value, list) else value


def restore(edited: Any, original: Any) -> Any:
    """Return the edited value, with what was left hidden put back from the original at the same place."""
    if edited == HIDDEN:
        return original
    if isinstance(edited, dict) and isinstance(original, dict):
        return {name: restore(inner, original.get(name, inner)) for name, inner in edited.items()}
    if isinstance(edited, list) and isinstance(original, list):
        known = [restore(inner, before) for inner, before in zip(edited, original, strict=False)]
        return known + edited[len(known) :]
    return edited


def pretty(text: str | None, names: Set[str]) -> str | None:
    """Return JSON text to show: indented, its numbers as they were written, named fields hidden."""
    if text is None:
        return None
    # Python would change the digits of numbers: they pass as texts that begin with NUL, which PostgreSQL never stores.
    marked = "\0{}".format
    value = json.loads(text, parse_float=marked, parse_int=marked)
    shown = json.dumps(hide(value, names), indent=2, ensure_ascii=False)
    return re.sub(r'"\\u0000([^"]+)"', r"\1", shown)
