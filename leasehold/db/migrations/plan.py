"""What has to be applied to bring a schema to a release, as SQL: `migrate()` sends and `script()` prints it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import LiteralString

from psycopg import sql

from leasehold.config import DEFAULT_SCHEMA, checked_schema
from leasehold.db.migrations.compatibility import BOOTSTRAP, OPEN_VERSIONS, Applied, Presence, Versions, version_problem
from leasehold.db.migrations.files import Source, packaged
from leasehold.db.migrations.function_sets import KEEP
from leasehold.errors import ConfigError, SchemaMismatch
from leasehold.version import __version__

# Settings of the role or the database that would end a long migration half-way are put aside.
# `client_connection_check_interval`: a migrator that was killed releases its locks at once, not
# when its statement ends; where the server's platform has no such check, nothing is lost.
# `idle_in_transaction_session_timeout`: one whose network is gone releases them too; between two steps it never waits.
_SETTINGS = """set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = '30s';
set local jit = off;
set local client_min_messages = warning;
do $$
begin
    if current_setting('transaction_timeout', true) is not null then
        perform set_config('transaction_timeout', '0', true);
    end if;
    begin
        perform set_config('client_connection_check_interval', '1s', true);
    exception when others then
        null;
    end;
end
$$;
"""
_RECORD_MIGRATION = (
    "insert into migrations (version, name, checksum, supports_from, release) values ({}, {}, {}, {}, {});"
)
_RECORD_FILE = (
    "insert into function_files (name, checksum, release) values ({}, {}, {})\n"
    "on conflict (name) do update\n"
    "set checksum = excluded.checksum, release = excluded.release, applied_at = now();"
)
# A file that is no longer part of the release is forgotten; the functions it made stay, because
# programs of the release before may still call them. A later migration drops them.
_RECORD_RELEASE = "delete from function_files where name <> all ({}::text[]);\nupdate function_files set release = {};"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Some statements that succeed or fail together, and what to call them."""

    title: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be applied to a schema, or was, in this order."""

    schema: str
    before: int
    """The highest migration applied before, 0 when there is none."""
    version: int
    """The highest migration applied afterwards."""
    migrations: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    """Function files that this release no longer has; the functions themselves stay."""
    superseded: bool = False
    """A later release was here: its function files stay as they are."""
    repairs: tuple[str, ...] = ()
    """What is wrong with roles and grants, as after a restore; the closing files set it right."""
    steps: tuple[Step, ...] = field(default=(), repr=False)
    """To be run in one transaction."""

    @property
    def changed(self) -> bool:
        """Whether anything is applied or forgotten."""
        return bool(self.migrations or self.functions or self.forgotten)


def make_plan(source: Source, applied: Applied, *, schema: str, release: str) -> Plan:
    """Compare the files of a release with a database; raise `SchemaMismatch` when they contradict."""
    _refuse_contradiction(source, applied, schema)
    pending = [migration for migration in source.migrations if migration.version > applied.versions.version]
    superseded = not pending and _superseded(source, applied, release)
    ours = () if superseded else source.functions
    changed = [file for file in ours if applied.functions.get(file.name, ("",))[0] != file.checksum]
    # Functions are about to change: those that are there are kept for the way back.
    keep = applied.presence.installed and bool(pending or changed)
    repairs = () if superseded or pending else applied.access
    if pending or changed or repairs:
        changed = [file for file in source.functions if file.closing or file in changed]
    known = [file.name for file in source.functions]
    forgotten = () if superseded else tuple(sorted(applied.functions.keys() - known))
    steps: list[Step] = []
    if not applied.presence.exists:
        steps.append(Step(title=f"schema {schema}", text=_filled("create schema {};", sql.Identifier(schema))))
    if not applied.presence.installed:
        steps.append(_bookkeeping(BOOTSTRAP.strip()))
    for one in pending:
        steps.append(Step(title=f"migration {one.name}", text=one.text))
        steps.append(_bookkeeping(_RECORD_MIGRATION, one.version, one.name, one.checksum, one.supports, release))
    if keep:
        steps.append(Step(title="functions as they are, kept for the way back", text=KEEP))
    for file in changed:
        steps.append(Step(title=f"function file {file.name}", text=file.text))
        steps.append(_bookkeeping(_RECORD_FILE, file.name, file.checksum, release))
    if changed or forgotten:
        steps.append(_bookkeeping(_RECORD_RELEASE, known, release))
    if steps:
        steps.append(_bookkeeping(OPEN_VERSIONS))
    return Plan(
        schema=schema,
        before=applied.versions.version,
        version=pending[-1].version if pending else applied.versions.version,
        migrations=tuple(migration.name for migration in pending),
        functions=tuple(file.name for file in changed),
        forgotten=forgotten,
        superseded=superseded,
        repairs=repairs,
        steps=tuple(steps),
    )


def _bookkeeping(text: LiteralString, *values: object) -> Step:
    return Step(title="bookkeeping", text=_filled(text, *map(sql.Literal, values)) if values else text)


def _filled(text: LiteralString, *values: sql.Composable) -> str:
    return sql.SQL(text).format(*values).as_string(None)


def first_steps(schema: str, *, turn_timeout: float, lock_timeout: float) -> tuple[Step, Step, Step]:
    """Return the steps before all others: settings until the transaction ends, the wait for a turn, short waits."""
    path = _filled("set local search_path = {}, pg_temp;", sql.Identifier(schema))
    # In a block: psql would print the result of a select.
    turn = _filled("do $$ begin perform pg_advisory_xact_lock({}); end $$;", lock_key(schema))
    return (
        Step(title="settings", text=f"{_SETTINGS}{path}\n{_lock_timeout(turn_timeout)}"),
        Step(title="one migration at a time", text=turn),
        # Every later user of a table waits behind a session that waits for a lock on it.
        Step(title="from here on no long wait for a lock", text=_lock_timeout(lock_timeout)),
    )


def lock_key(schema: str) -> sql.Composed:
    """Return the expression for the advisory lock that all migrators of one schema share."""
    return sql.SQL("pg_catalog.hashtextextended({}, 0)").format(sql.Literal(f"leasehold.migrate.{schema}"))


def _lock_timeout(seconds: float) -> str:
    return _filled("set local lock_timeout = {};", sql.Literal(f"{round(seconds * 1000)}ms"))


def _refuse_contradiction(source: Source, applied: Applied, schema: str) -> None:
    if applied.presence.occupied and not applied.presence.installed:
        raise ConfigError(
            f"schema {schema!r} exists and holds things that are not Leasehold's",
            hint="choose a schema of Leasehold's own with --schema or LEASEHOLD_SCHEMA",
        )
    version = applied.versions.version
    if version > source.latest and (problem := version_problem(applied.versions, latest=source.latest, schema=schema)):
        raise problem
    for migration in source.migrations:
        recorded = applied.migrations.get(migration.version)
        if recorded is None and migration.version < version:
            raise SchemaMismatch(
                f"schema {schema!r} is at migration {version} but lacks {migration.name}",
                hint="its table `migrations` was edited, or a script was run out of order; restore a backup",
            )
        if recorded is not None and recorded != migration.checksum:
            raise SchemaMismatch(
                f"migration {migration.name} differs from the one applied to schema {schema!r}",
                hint="migrations are append-only: restore the file as released and add a new one",
            )


def _superseded(source: Source, applied: Applied, release: str) -> bool:
    """Return whether a later release has left its function files: a program of the release before, which starts again
    during a rolling deployment and migrates, must not replace the new functions that other programs need.
    """
    later = (_order(by) > _order(release) for _, by in applied.functions.values())
    return applied.versions.version > source.latest or any(later)


def _order(release: str) -> tuple[int, ...]:
    """Return the leading numbers: enough to order releases, without development suffixes."""
    return tuple(int(number) for number in re.split(r"[^0-9.]", release)[0].split(".") if number)


# -- a whole installation or upgrade as one text, for psql and for people who review before they run

_FITNESS = """do $$
begin
    if current_setting('server_encoding') <> 'UTF8' then
        raise exception 'the database has the encoding %, and Leasehold needs UTF8', current_setting('server_encoding');
    end if;
end
$$;"""

# A schema made beforehand, empty, for a role that may not create one, is welcome.
_NOT_INSTALLED = """do $$
begin
    if to_regclass('migrations') is not null then
        raise exception 'schema % is installed already', {name}
            using hint = 'Run: leasehold migrate --sql --after <its highest migration>';
    end if;
    if to_regnamespace({name}) is null then
        create schema {schema};
    end if;
end
$$;"""

_AT_MIGRATION = """do $$
begin
    if (select max(version) from migrations) is distinct from {after} then
        raise exception 'schema % is not at migration %', {name}, {after}
            using hint = 'Ask: select max(version) from migrations';
    end if;
end
$$;"""


def script(*, schema: str = DEFAULT_SCHEMA, after: int = 0, source: Source | None = None) -> str:
    """Return SQL that does what `migrate()` does: it installs into a database without the schema, or, with `after`,
    upgrades a schema that is exactly at that migration. Anywhere else it fails and changes nothing.
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
    guard = sql.SQL(_AT_MIGRATION if after else _NOT_INSTALLED).format(
        name=sql.Literal(schema), schema=sql.Identifier(schema), after=sql.Literal(after)
    )
    yield f"-- Leasehold {__version__}, schema {schema}: migration {after} to {source.latest}."
    yield "-- Run it with: psql -v ON_ERROR_STOP=1 -f <this file>"
    yield "begin;"
    yield "set local client_encoding = 'UTF8';"
    for step in (
        Step(title="the database can hold any text", text=_FITNESS),
        *first_steps(schema, turn_timeout=60.0, lock_timeout=5.0),
        Step(title="where this script starts", text=guard.as_string(None)),
        *plan.steps,
    ):
        yield f"\n-- {step.title}"
        yield step.text.rstrip()
        if not step.text.rstrip().endswith(";"):
            yield ";"  # on a line of its own: the last one may be a comment
    yield "\ncommit;\n"


def _assumed(source: Source, after: int) -> Applied:
    """Return what is applied where the guard passes; function files are all applied again, whatever is there."""
    done = source.migrations[:after]
    return Applied(
        presence=Presence(exists=True, usable=True, installed=after > 0, occupied=after > 0),
        versions=Versions(version=after, supports=done[-1].supports if done else 0),
        migrations={migration.version: migration.checksum for migration in done},
    )
