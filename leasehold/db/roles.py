"""Which of Leasehold's roles may call what, as the file of grants has it: for the hint to a login that may not."""

import json
import re
from functools import cache
from importlib.resources import files

_GRANTS = re.compile(r"granted_functions\(\).*?return '(\{.*?\})'::jsonb;", re.DOTALL)
_ROLES = (
    "grant the login the role for what it does: leasehold_producer enqueues, leasehold_worker runs jobs,"
    " leasehold_viewer looks (verify, stats, queues), leasehold_operator looks and changes, leasehold_api serves HTTP"
)
_NAMES = re.compile(r"[a-z_]+[a-z0-9]*")


@cache
def _granted() -> dict[str, tuple[str, ...]]:
    """Each public function with the roles that may call it."""
    text = files("leasehold.db").joinpath("sql/functions/zz_grants.sql").read_text()
    found = _GRANTS.search(text)
    functions: dict[str, tuple[str, ...]] = {}
    for role, names in (json.loads(found[1]) if found else {}).items():
        for name in names:
            functions[name] = (*functions.get(name, ()), role)
    return functions


def role_hint(message: str) -> str:
    """What to grant. `message` is PostgreSQL's, in any language: the function's name is found in it."""
    granted = _granted()
    for word in _NAMES.findall(message):
        name = re.sub(r"_v[0-9]+$", "", word)
        if name in granted:
            roles = granted[name]
            cure = "grant one of them to the login" if len(roles) > 1 else "grant that role to the login"
            return f"only {_listed(roles)} may call {name}: {cure}"
    return _ROLES


def _listed(names: tuple[str, ...]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
