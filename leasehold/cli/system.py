"""`leasehold stats`, `verify`, `doctor` and `openapi`: figures, invariants, faults, the API's description."""

import json
import sys
import time
from contextlib import closing
from typing import Annotated

from rich.console import Console
from rich.text import Text
from typer import Exit, Option, echo

import leasehold
from leasehold._locate import located
from leasehold.app import App
from leasehold.cli.console import answer, count, many, say, show_table, shown
from leasehold.cli.options import AsJson, Dsn, Schema, Session, length
from leasehold.config import Settings
from leasehold.db.database import Database
from leasehold.db.migrations.compatibility import presence
from leasehold.db.migrations.migrate import check
from leasehold.db.notify import notifications_arrive
from leasehold.db.store import Finding, Law
from leasehold.errors import NotPermitted, SchemaMismatch
from leasehold.operate import system

_SKEW_WARN, _SKEW_FAIL = 1.0, 60.0
"""Seconds between the clocks of this host and of the database."""
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def stats(op: Session) -> None:
    """Show a few figures: jobs by state, what ended in the last minute, workers. What is many is counted to 10,000."""
    figures = op.run(system.figures)
    if op.as_json:
        named = {name: {"value": value, "capped": capped} for name, (value, capped) in figures.items()}
        op.answer({"figures": named})
        return
    rows = ((name.replace("_", " "), count(value, capped)) for name, (value, capped) in figures.items())
    show_table(("figure", "value"), rows, right=("value",))


def verify(
    op: Session,
    *,
    slack: Annotated[str, Option("--slack", help="What is late by less than this is not late.")] = "1m",
    latest: Annotated[
        int, Option("--latest", min=1, max=100_000, help="How many of the latest attempts to check.")
    ] = 1000,
) -> None:
    """Check what must always hold: no job lost, none with two owners, no limit broken, … 1 if something does not."""
    laws = op.run(system.invariants, slack=length(slack, option="--slack"), latest=latest)
    op.table(laws, ("law", "verdict", "violations", "a violation is", "such as"), _cells, right=("violations",))
    if broken := [law.name for law in laws if not law.ok]:
        say(f"{many(len(broken), 'law')} of {len(laws)} broken: {', '.join(broken)}", style="bold red")
        raise Exit(1)
    say(f"all {len(laws)} laws hold")


def _cells(law: Law) -> tuple[object, ...]:
    verdict = "ok" if law.ok else "BROKEN"
    return (law.name.replace("_", " "), verdict, count(law.violations, law.capped), law.detail, ", ".join(law.sample))


def openapi() -> None:
    """Print the API's OpenAPI 3.1 description as JSON; needs no database."""
    echo(json.dumps(leasehold.api(App()).openapi(), indent=2))


def doctor(
    *,
    listen: Annotated[float, Option("--listen", min=0.1, max=60, help="Seconds to wait for a NOTIFY.")] = 3.0,
    dsn: Dsn = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> None:
    """Check the database, the schema, the connection and the jobs. 1 if something has failed."""
    settings = Settings.from_env(dsn=dsn, schema=schema)
    with located(settings, say=say) as where:
        findings = [_schema(where, settings.schema)]
        if findings[0].verdict == "ok":
            with closing(Database(where, schema=settings.schema, prepare=settings.prepare)) as database:
                findings += _findings(database, settings, listen)
    if as_json:
        answer(findings, as_json=True)
    else:
        for finding in findings:
            _show(finding)
    failed, warned = (sum(finding.verdict == verdict for finding in findings) for verdict in ("fail", "warn"))
    say(f"{many(len(findings), 'check')}: {failed} failed, {many(warned, 'warning')}")
    if failed:
        raise Exit(SchemaMismatch.exit_code if findings[0].verdict == "fail" else 1)


def _schema(dsn: str, schema: str) -> Finding:
    try:
        check(dsn, schema=schema)
    except (SchemaMismatch, NotPermitted) as problem:
        return Finding("schema", "fail", str(problem.args[0]), problem.hint or "")
    return Finding("schema", "ok", f"schema {schema!r} is one that this release can work with", "")


def _findings(database: Database, settings: Settings, listen: float) -> list[Finding]:
    try:
        found = database.run(database.store.doctor())
    except NotPermitted as problem:
        cure = "use a login with the role leasehold_operator, or: grant leasehold_operator to it"
        found = [Finding("privileges", "fail", f"the rest cannot be checked: {problem.args[0]}", cure)]
    if database.is_pooled:
        words = "a pooler is before the database: no statements are prepared, and settings of the role are not pinned"
        cure = "set LEASEHOLD_PREPARE=off, so that programs need not find out; or give them a DSN to PostgreSQL itself"
        found.append(Finding("pooler", "warn" if settings.prepare else "ok", words, cure))
    standby = database.run(presence(settings.schema)).standby
    return [*found, _clock(database), _listen(database, listen, standby=standby)]


def _clock(database: Database) -> Finding:
    database.run(database.store.clock())  # connects, so that the measured call does not have to
    before = time.time()
    there = database.run(database.store.clock()) / 1e6
    after = time.time()
    # The least possible difference: the database read its clock at some time in between.
    off = max(0.0, before - there, there - after)
    verdict = "fail" if off >= _SKEW_FAIL else "warn" if off >= _SKEW_WARN else "ok"
    words = f"the clock of this host is {off:.1f} s off the database's" if off >= 0.1 else "the clocks agree"
    cure = "run a time service (chrony, ntpd) on both; leases go by the database's clock"
    return Finding("clock", verdict, words, cure)


def _listen(database: Database, seconds: float, *, standby: bool) -> Finding:
    if standby:
        words = "a standby passes no NOTIFY on: nothing to try here, workers use the primary"
        return Finding("listen", "ok", words, "")
    try:
        database.run(database.store.notify([]))
    except NotPermitted as problem:
        return Finding("listen", "warn", "not checked: this login may not call notify", problem.hint or "")
    if notifications_arrive(database.dsn, database.store, within=seconds):
        return Finding("listen", "ok", "a NOTIFY arrives: idle workers start new jobs within milliseconds", "")
    then = "as behind a pooler in transaction mode: workers poll instead"
    words = f"a NOTIFY did not arrive within {seconds:g} s, {then}"
    cure = "give workers a DSN that leads to PostgreSQL itself, or let the pooler keep sessions"
    return Finding("listen", "warn", words, cure)


def _show(finding: Finding) -> None:
    text = Text(f"{finding.verdict:<4}  {finding.name:<12}  {shown(finding.detail)}")
    text.stylize(_STYLES[finding.verdict], 0, 4)
    if finding.verdict != "ok" and finding.cure:
        text.append(f"\n{'':<4}  {'':<12}  cure: {shown(finding.cure)}", style="dim")
    if sys.stdout.isatty():
        Console().print(text, soft_wrap=True)
    else:
        echo(text.plain)
