"""`leasehold doctor`: what is wrong here, and what to do about it."""

import sys
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from leasehold.cli.connected import AsJson, Dsn, Schema, print_json
from leasehold.cli.console import say, shown
from leasehold.cli.words import many
from leasehold.config import Settings
from leasehold.db.compat import presence
from leasehold.db.migrate import check
from leasehold.db.pool import Database
from leasehold.db.probe import hints_arrive
from leasehold.db.store import Finding
from leasehold.errors import NotPermitted, SchemaMismatch
from leasehold.locate import located

_SKEW_WARN, _SKEW_FAIL = 1.0, 60.0
"""Seconds between the clocks of this host and of the database."""

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def command(
    *,
    listen: Annotated[float, typer.Option("--listen", min=0.1, max=60, help="Seconds to wait for a NOTIFY.")] = 3.0,
    dsn: Dsn = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> None:
    """Look at the database, the schema, the connection and the jobs. 1 if something has failed."""
    settings = Settings.from_env(dsn=dsn, schema=schema)
    with located(settings, say=say) as where:
        findings = list(_schema_findings(where, settings.schema))
        if findings[-1].verdict == "ok":
            database = Database(where, schema=settings.schema, prepare=settings.prepare)
            try:
                findings += _findings(database, settings, listen)
            finally:
                database.close()
    if as_json:
        print_json(findings)
    else:
        for finding in findings:
            _show(finding)
    failed = sum(finding.verdict == "fail" for finding in findings)
    warned = sum(finding.verdict == "warn" for finding in findings)
    say(f"{many(len(findings), 'check')}: {failed} failed, {many(warned, 'warning')}")
    if any(finding.name == "schema" and finding.verdict == "fail" for finding in findings):
        raise typer.Exit(SchemaMismatch.exit_code)
    if failed:
        raise typer.Exit(1)


def _schema_findings(dsn: str, schema: str) -> list[Finding]:
    try:
        check(dsn, schema=schema)
    except (SchemaMismatch, NotPermitted) as problem:
        return [Finding("schema", "fail", str(problem.args[0]), problem.hint or "")]
    return [Finding("schema", "ok", f"schema {schema!r} is one that this release can work with", "")]


def _findings(database: Database, settings: Settings, listen: float) -> list[Finding]:
    try:
        found = database.run(database.store.doctor())
    except NotPermitted as problem:
        cure = "use a login with the role leasehold_operator, or: grant leasehold_operator to it"
        found = [Finding("privileges", "fail", f"the rest cannot be looked at: {problem.args[0]}", cure)]
    standby = database.run(presence(settings.schema)).standby
    return [
        *found,
        *_pooler(database, settings),
        _clock(database),
        _listen(database, settings.schema, listen, standby=standby),
    ]


def _pooler(database: Database, settings: Settings) -> list[Finding]:
    if not database.is_pooled:
        return []
    words = "a pooler is before the database: no statements are prepared, and settings of the role are not pinned"
    cure = "set LEASEHOLD_PREPARE=off, so that programs need not find out; or give them a DSN to PostgreSQL itself"
    return [Finding("pooler", "warn" if settings.prepare else "ok", words, cure)]


def _clock(database: Database) -> Finding:
    database.run(database.store.clock())  # so that no connection has to be made while it is measured
    before = time.time()
    there = database.run(database.store.clock()) / 1e6
    after = time.time()
    # As far off as it is for sure: the answer was made at some time in between.
    off = max(0.0, before - there, there - after)
    verdict = "fail" if off >= _SKEW_FAIL else "warn" if off >= _SKEW_WARN else "ok"
    words = f"the clock of this host is {off:.1f} s off the database's" if off >= 0.1 else "the clocks agree"
    return Finding(
        "clock", verdict, words, "run a time service (chrony, ntpd) on both; leases go by the database's clock"
    )


def _listen(database: Database, schema: str, seconds: float, *, standby: bool) -> Finding:
    if standby:
        return Finding(
            "listen", "ok", "a standby passes no NOTIFY on: nothing to try here, workers use the primary", ""
        )
    if hints_arrive(database.dsn, schema, timeout=seconds):
        return Finding("listen", "ok", "a NOTIFY arrives: idle workers start new jobs within milliseconds", "")
    return Finding(
        "listen",
        "warn",
        f"a NOTIFY did not arrive within {seconds:g} s, as behind a pooler in transaction mode: workers poll instead",
        "give workers a DSN that leads to PostgreSQL itself, or let the pooler keep sessions",
    )


def _show(finding: Finding) -> None:
    line = f"{finding.verdict:<4}  {finding.name:<12}  {shown(finding.detail)}"
    cure = f"{'':<4}  {'':<12}  cure: {shown(finding.cure)}" if finding.verdict != "ok" and finding.cure else None
    if not sys.stdout.isatty():
        typer.echo(line if cure is None else f"{line}\n{cure}")
        return
    text = Text(line)
    text.stylize(_STYLES[finding.verdict], 0, 4)
    console = Console()
    console.print(text, soft_wrap=True)
    if cure is not None:
        console.print(Text(cure, style="dim"), soft_wrap=True)
