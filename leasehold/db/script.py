"""A whole installation or upgrade as one text, for psql and for people who review before they run."""

from collections.abc import Iterator

from psycopg import sql

from leasehold.config import DEFAULT_SCHEMA, checked_schema
from leasehold.db.bookkeeping import State
from leasehold.db.compat import Presence, Versions
from leasehold.db.planning import make_plan
from leasehold.db.schema_files import Source, packaged
from leasehold.db.steps import Step, impatience, settings, steps, turn
from leasehold.errors import ConfigError
from leasehold.version import __version__

_TURN_TIMEOUT = 60.0
_LOCK_TIMEOUT = 5.0

_FITNESS = Step(
    title="the database can hold any text",
    text="do $$\nbegin\n"
    "    if current_setting('server_encoding') <> 'UTF8' then\n"
    "        raise exception 'the database has the encoding %, and Leasehold needs UTF8',"
    " current_setting('server_encoding');\n"
    "    end if;\n"
    "end\n$$;",
)


def script(*, schema: str = DEFAULT_SCHEMA, after: int = 0, source: Source | None = None) -> str:
    """Return SQL that does what `migrate()` does, in one transaction with its bookkeeping.

    It installs into a database without the schema, or, with `after`, upgrades a schema that is
    exactly at that migration. Anywhere else it fails and changes nothing.
    """
    schema = checked_schema(schema)
    source = source or packaged()
    if not 0 <= after <= source.latest:
        raise ConfigError(
            f"there is no script that starts after migration {after}",
            hint=f"give a number from 0 (nothing installed) to {source.latest}",
        )
    return "\n".join(_lines(schema, after, source))


def _lines(schema: str, after: int, source: Source) -> Iterator[str]:
    plan = make_plan(source, _assumed(source, after), schema=schema, release=__version__)
    yield f"-- Leasehold {__version__}, schema {schema}: migration {after} to {source.latest}."
    yield "-- Run it with: psql -v ON_ERROR_STOP=1 -f <this file>"
    yield "begin;"
    yield "set local client_encoding = 'UTF8';"
    yield from _section(_FITNESS)
    yield from _section(settings(schema, turn_timeout=_TURN_TIMEOUT))
    yield from _section(turn(schema))
    yield from _section(impatience(_LOCK_TIMEOUT))
    yield from _section(_guard(schema, after))
    for step in steps(plan, source, release=__version__):
        yield from _section(step)
    yield ""
    yield "commit;\n"


def _assumed(source: Source, after: int) -> State:
    """The state after the guard; function files are all applied, whatever is there."""
    done = source.migrations[:after]
    there = after > 0
    return State(
        presence=Presence(exists=True, usable=True, installed=there, occupied=there),
        versions=Versions(version=after, supports=done[-1].supports if done else 0),
        migrations={migration.version: migration.checksum for migration in done},
    )


def _guard(schema: str, after: int) -> Step:
    """A schema made beforehand, empty, for a role that may not create one, is welcome."""
    if after == 0:
        text = sql.SQL(
            "do $$\nbegin\n"
            "    if to_regclass('migrations') is not null then\n"
            "        raise exception 'schema % is installed already', {name}\n"
            "            using hint = 'Run: leasehold migrate --sql --after <its highest migration>';\n"
            "    end if;\n"
            "    if to_regnamespace({name}) is null then\n"
            "        create schema {schema};\n"
            "    end if;\n"
            "end\n$$;"
        )
    else:
        text = sql.SQL(
            "do $$\nbegin\n"
            "    if (select max(version) from migrations) is distinct from {after} then\n"
            "        raise exception 'schema % is not at migration %', {name}, {after}\n"
            "            using hint = 'Ask: select max(version) from migrations';\n"
            "    end if;\n"
            "end\n$$;"
        )
    values = {"name": sql.Literal(schema), "schema": sql.Identifier(schema), "after": sql.Literal(after)}
    return Step(title="where this script starts", text=text.format(**values).as_string(None))


def _section(step: Step) -> Iterator[str]:
    yield ""
    yield f"-- {step.title}"
    yield step.text.rstrip()
    if not step.text.rstrip().endswith(";"):
        # On a line of its own: the last one may be a comment.
        yield ";"
