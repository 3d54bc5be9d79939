"""Functions that can be stopped between any two of their statements.

Every volatile plpgsql function of the schema, the helpers included, is replaced by a copy of itself that passes a gate
after `begin` and after each statement. A session passes all gates but the one that is named: there it waits,
inside its transaction and with all its locks, until the driver opens that gate.
"""

import re
from collections.abc import Iterator
from typing import Final

from tests.sql.conftest import Session

GATE: Final = """
create function gate() returns boolean language plpgsql as $$
declare
  passed integer := current_setting('gate.passed')::integer + 1;
begin
  perform set_config('gate.passed', passed::text, false);
  if passed = current_setting('gate.stop')::integer then
    perform pg_advisory_xact_lock_shared(current_setting('gate.number')::integer);
  end if;
  return true;
end $$
"""

# Stable functions see one snapshot from beginning to end: nothing can happen between their statements. Those that are
# named touch no table.
_FUNCTIONS: Final = """
select p.prosrc, pg_get_functiondef(p.oid)
from pg_proc p join pg_language l on l.oid = p.prolang
where p.pronamespace = 'leasehold'::regnamespace and l.lanname = 'plpgsql' and p.provolatile = 'v' and p.prokind = 'f'
  and p.prorettype <> 'trigger'::regtype and p.proname not in ('refuse', 'announce', 'check_worker', 'check_failures')
"""

_TOKEN: Final = re.compile(
    r"""--[^\n]* | /\*.*?\*/ | '(?:[^']|'')*' | "[^"]*" | \$(\w*)\$.*?\$\1\$ | \w+ | [();]""", re.DOTALL | re.VERBOSE
)

# A branch is over, which the gate before it has shown already; or the function is.
_NO_STATEMENT: Final = re.compile(r"\b(end\s+(if|loop)|return(?!\s+(query|next))\b[^;]*);\Z", re.IGNORECASE)

# Not PERFORM: that would set FOUND, which the functions look at.
_PASS: Final = " assert leasehold.gate();"


def instrument(session: Session) -> int:
    """Put gates into all functions of a database; returns how many."""
    gates = 0
    for source, definition in session.execute(_FUNCTIONS).fetchall():
        text = gated(source)
        gates += text.count(_PASS)
        assert definition.count(source) == 1
        session.execute(definition.replace(source, text))
    session.execute(GATE)
    return gates


def gated(source: str) -> str:
    """The body of a function with a gate after `begin` and after each statement."""
    parts, last = [], 0
    for place in _boundaries(source):
        parts += [source[last:place], _PASS]
        last = place
    return "".join([*parts, source[last:]])


def _boundaries(source: str) -> Iterator[int]:
    begun, depth = False, 0
    for token in _TOKEN.finditer(source):
        match token.group().lower():
            case "begin" if not begun:
                begun = True
                yield token.end()
            case "(":
                depth += 1
            case ")":
                depth -= 1
            case ";" if begun and depth == 0 and not _NO_STATEMENT.search(source, 0, token.end()):
                yield token.end()
