"""`leasehold migrate`: bring a database to the schema of this release."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from leasehold.cli.console import progress_bar, say
from leasehold.config import DEFAULT_SCHEMA, Settings
from leasehold.db.migrate import Report, back, migrate, plan, script, way_back
from leasehold.db.way_back import FunctionSet
from leasehold.errors import ConfigError
from leasehold.locate import located


def command(
    *,
    plan_only: Annotated[
        bool, typer.Option("--plan", help="Print what would be applied and change nothing; exits with 0.")
    ] = False,
    sql: Annotated[bool, typer.Option("--sql", help="Print the migration as SQL for psql; needs no database.")] = False,
    go_back: Annotated[
        bool,
        typer.Option("--back", help="Restore the functions as they were before the latest migration; tables stay."),
    ] = False,
    after: Annotated[int, typer.Option("--after", help="With --sql: the migration that the schema is at.", min=0)] = 0,
    dsn: Annotated[
        str | None,
        typer.Option("--dsn", help="The database; LEASEHOLD_DSN when left out.", show_default=False),
    ] = None,
    schema: Annotated[
        str, typer.Option("--schema", envvar="LEASEHOLD_SCHEMA", help="The schema that holds everything.")
    ] = DEFAULT_SCHEMA,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Bring the database to the schema of this release.

    Safe to run at every start and from many places at once. One transaction: all of it or nothing.
    """
    if sql and (plan_only or as_json):
        raise ConfigError("--sql goes with neither --plan nor --json", hint="leave one of them out")
    if go_back and sql:
        raise ConfigError("--back does not go with --sql", hint="it asks the database what it has kept")
    if after and not sql:
        raise ConfigError("--after goes only with --sql", hint="without it the database is asked")
    if sql:
        typer.echo(script(schema=schema, after=after), nl=False)
        return
    settings = Settings.from_env(dsn=dsn, schema=schema)
    with located(settings, say=say, migrated=False) as database, progress_bar(f"schema {schema}", None):
        if go_back:
            kept = (way_back if plan_only else back)(database, schema=schema)
            _show_back(kept, plan_only=plan_only, as_json=as_json)
            return
        report = Report.of(plan(database, schema=schema)) if plan_only else migrate(database, schema=schema)
    _show(report, plan_only=plan_only, as_json=as_json)
    say(_summary(report, plan_only=plan_only))


def _show_back(kept: FunctionSet, *, plan_only: bool, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asdict(kept)))
    which = f"the {kept.functions} functions of release {kept.release}, kept at {kept.kept_at},"
    end = "would be restored; nothing was changed" if plan_only else "are restored; the tables stay as they are"
    say(f"schema {kept.schema!r}: {which} {end}")


def _show(report: Report, *, plan_only: bool, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asdict(report)))
        return
    for label, names in (
        ("migration", report.migrations),
        ("functions", report.functions),
        ("forgotten", report.forgotten),
        ("repaired" if not plan_only else "repair", report.repairs),
    ):
        for name in names:
            typer.echo(f"{label} {name}")


def _summary(report: Report, *, plan_only: bool) -> str:
    where = f"schema {report.schema!r}"
    if report.superseded:
        return f"{where} is at migration {report.version} of a later release: nothing to do"
    if not report.changed:
        return f"{where} is at migration {report.version}: nothing to do"
    if report.repairs and not report.migrations:
        return f"{where}: roles and grants {'need repair; nothing was changed' if plan_only else 'are repaired'}"
    if report.before == report.version:
        what = "would be brought to this release; nothing was changed" if plan_only else "are now those of this release"
        return f"{where} is at migration {report.version}: its functions {what}"
    if plan_only:
        return f"{where} would go from migration {report.before} to {report.version}; nothing was changed"
    return f"{where} went from migration {report.before} to {report.version}"
