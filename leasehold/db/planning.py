"""What has to be done to bring a schema to a release: decided here, done elsewhere."""

from dataclasses import dataclass

from leasehold.db.bookkeeping import State
from leasehold.db.compat import version_problem
from leasehold.db.schema_files import FunctionFile, Migration, Source
from leasehold.errors import ConfigError, SchemaMismatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would be applied to the schema, in this order."""

    schema: str
    version: int
    """The highest migration applied so far, 0 when there is none."""
    create_schema: bool
    bootstrap: bool
    migrations: tuple[Migration, ...]
    functions: tuple[FunctionFile, ...]
    forgotten: tuple[str, ...]
    """Recorded function files that this release no longer has."""
    superseded: bool
    """A later release was here: its function files stay as they are."""
    repairs: tuple[str, ...] = ()
    """What is wrong with roles and grants, in words; the closing files set it right."""
    keep: bool = False
    """Functions are about to change: those that are there are kept for the way back."""

    @property
    def target(self) -> int:
        """The highest migration applied afterwards."""
        return self.migrations[-1].version if self.migrations else self.version

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.bootstrap or self.migrations or self.functions or self.forgotten)


def make_plan(source: Source, state: State, *, schema: str, release: str) -> Plan:
    """Compare the files of a release with a database; raise `SchemaMismatch` when they contradict."""
    _refuse_foreign(state, schema)
    _refuse_contradiction(source, state, schema)
    pending = tuple(migration for migration in source.migrations if migration.version > state.versions.version)
    superseded = not pending and _superseded(source, state, release)
    changed = () if superseded else _changed(source, state)
    keep = state.presence.installed and bool(pending or changed)
    repairs = () if superseded or pending else state.access
    if pending or changed or repairs:
        changed += tuple(file for file in source.functions if file.closing and file not in changed)
    known = {file.name for file in source.functions}
    return Plan(
        schema=schema,
        version=state.versions.version,
        create_schema=not state.presence.exists,
        bootstrap=not state.presence.installed,
        migrations=pending,
        functions=tuple(sorted(changed, key=source.functions.index)),
        forgotten=() if superseded else tuple(sorted(set(state.functions) - known)),
        superseded=superseded,
        repairs=repairs,
        keep=keep,
    )


def _refuse_foreign(state: State, schema: str) -> None:
    if state.presence.occupied and not state.presence.installed:
        raise ConfigError(
            f"schema {schema!r} exists and holds things that are not Leasehold's",
            hint="choose a schema of Leasehold's own with --schema or LEASEHOLD_SCHEMA",
        )


def _refuse_contradiction(source: Source, state: State, schema: str) -> None:
    if state.versions.version > source.latest:
        problem = version_problem(state.versions, latest=source.latest, schema=schema)
        if problem:
            raise problem
    for migration in source.migrations:
        recorded = state.migrations.get(migration.version)
        if recorded is None and migration.version < state.versions.version:
            raise SchemaMismatch(
                f"schema {schema!r} is at migration {state.versions.version} but lacks {migration.name}",
                hint="its table `migrations` was edited, or a script was run out of order; restore a backup",
            )
        if recorded is not None and recorded != migration.checksum:
            raise SchemaMismatch(
                f"migration {migration.name} differs from the one applied to schema {schema!r}",
                hint="migrations are append-only: restore the file as released and add a new one",
            )


def _changed(source: Source, state: State) -> tuple[FunctionFile, ...]:
    return tuple(
        file
        for file in source.functions
        if file.name not in state.functions or state.functions[file.name].checksum != file.checksum
    )


def _superseded(source: Source, state: State, release: str) -> bool:
    """Whether a release after this one has left its function files in the database.

    While a deployment rolls, a program of the release before may start once more and migrate: it
    must not take the new functions away from the programs that need them.
    """
    if state.versions.version > source.latest:
        return True
    return any(_order(file.release) > _order(release) for file in state.functions.values())


def _order(release: str) -> tuple[int, ...]:
    """The leading numbers: enough to tell releases apart, and blind to development suffixes."""
    numbers = []
    for part in release.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)
