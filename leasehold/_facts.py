"""Limits and defaults that SQL and Python share: `from leasehold._facts import MAX_TAGS` is what SQL calls max_tags().

Only `db/sql/functions/000_facts.sql` states their values, and what each is about.
"""

import re
from importlib.resources import files

_FILE = files("leasehold") / "db" / "sql" / "functions" / "000_facts.sql"
_STATED = re.findall(r"function (\w+)\(\) .* return (\d+);", _FILE.read_text("utf-8"))
_FACTS = {name.upper(): int(value) for name, value in _STATED}


def __getattr__(name: str) -> int:
    try:
        return _FACTS[name]
    except KeyError:
        raise AttributeError(f"{_FILE.name} states no {name}; it states {', '.join(_FACTS)}") from None
