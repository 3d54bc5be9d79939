"""`leasehold migrate`: bring a database to the schema of this release."""

import json
from dataclasses import asdict
from typing import Annotated

from typer import Option, echo

from leasehold._locate import located
from leasehold.cli.console import progress_bar, say
from leasehold.cli.options import AsJson, Dsn
from leasehold.config import DEFAULT_SCHEMA, Settings
from leasehold.db.migrations.function_sets import FunctionSet
from leasehold.db.migrations.migrate import Plan, back, migrate, plan, script, way_back
from leasehold.errors import ConfigError


def command(
    *,
    plan_only: Annotated[
        bool, Option("--plan", help="Print what would be applied and change nothing; exits with 0.")
    ] = False,
    sql: Annotated[bool, Option("--sql", help="Print the migration as SQL for psql; needs no database.")] = False,
    go_back: Annotated[
        bool, Option("--back", help="Restore the functions as they were before the latest migration; tables stay.")
    ] = False,
    after: Annotated[int, Option("--after", help="With --sql: the migration that the schema is at.", min=0)] = 0,
    dsn: Dsn = None,
    schema: Annotated[
        str, Option("--schema", envvar="LEASEHOLD_SCHEMA", help="The schema that holds everything.")
    ] = DEFAULT_SCHEMA,
    as_json: AsJson = False,
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
        echo(script(schema=schema, after=after), nl=False)
        return
    result: FunctionSet | Plan
    settings = Settings.from_env(dsn=dsn, schema=schema)
    with located(settings, say=say, migrated=False) as database, progress_bar(f"schema {schema}", None):
        if go_back:
            result = (way_back if plan_only else back)(database, schema=schema)
        else:
            result = (plan if plan_only else migrate)(database, schema=schema)
    if as_json:
        echo(json.dumps({name: value for name, value in asdict(result).items() if name != "steps"}))
    elif isinstance(result, Plan):
        for line in _lines(result, plan_only=plan_only):
            echo(line)
    say(_summary(result, plan_only=plan_only) if isinstance(result, Plan) else _way_back(result, plan_only=plan_only))


def _way_back(kept: FunctionSet, *, plan_only: bool) -> str:
    which = f"the {kept.functions} functions of release {kept.release}, kept at {kept.kept_at},"
    end = "would be restored; nothing was changed" if plan_only else "are restored; the tables stay as they are"
    return f"schema {kept.schema!r}: {which} {end}"


def _lines(report: Plan, *, plan_only: bool) -> list[str]:
    steps = {
        "migration": report.migrations,
        "functions": report.functions,
        "forgotten": report.forgotten,
        "repair" if plan_only else "repaired": report.repairs,
    }
    return [f"{label} {name}" for label, names in steps.items() for name in names]


def _summary(report: Plan, *, plan_only: bool) -> str:
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
