"""The SQL files of a release: numbered migrations and re-creatable function files.

`migrations/NNNN_name.sql` are append-only: once released, a file never changes. Comment lines at its top may hold
`-- supports: N`, the lowest migration number whose programs still work with the schema after this migration; without
it the value of the migration before is carried over. `functions/*.sql` hold `create or replace` statements and are
applied again when they change. Those named `zz_*.sql` (grants) run after every change of anything.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable

from leasehold.errors import ConfigError

_SUPPORTS = "-- supports:"


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlFile:
    """A file of a release."""

    name: str
    text: str

    @property
    def checksum(self) -> str:
        """Identifies the content; recorded when the file is applied."""
        return sha256(self.text.encode()).hexdigest()

    @property
    def closing(self) -> bool:
        """Whether it runs after every change of anything, as grants must."""
        return self.name.startswith("zz_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration(SqlFile):
    """One numbered step of the schema's history."""

    version: int
    supports: int  # the lowest migration number whose programs work with the schema after this one


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """All SQL of one release, in the order in which it is applied."""

    migrations: tuple[Migration, ...]
    functions: tuple[SqlFile, ...]
    """Each can be applied any number of times, and is when its content has changed."""

    @classmethod
    def load(cls, directory: Traversable) -> "Source":
        """Read `migrations/` and `functions/` below `directory`; either may be missing."""
        return cls(
            migrations=tuple(_migrations(directory.joinpath("migrations"))),
            functions=tuple(
                SqlFile(name=file.name, text=file.read_text(encoding="utf-8"))
                for file in _sql_files(directory.joinpath("functions"))
            ),
        )

    @property
    def latest(self) -> int:
        """The highest migration number, 0 when there is none."""
        return self.migrations[-1].version if self.migrations else 0

    def until(self, version: int) -> "Source":
        """Return the same history cut after `version`, without functions, which may need what comes later."""
        return replace(self, migrations=self.migrations[:version], functions=())


@cache
def packaged() -> Source:
    """Return the SQL that came with this release."""
    return Source.load(files("leasehold.db").joinpath("sql"))


def _sql_files(directory: Traversable) -> list[Traversable]:
    if not directory.is_dir():
        return []
    found = (file for file in directory.iterdir() if file.name.endswith(".sql"))
    return sorted(found, key=lambda file: file.name)


def _migrations(directory: Traversable) -> Iterator[Migration]:
    supports = 1
    for expected, file in enumerate(_sql_files(directory), start=1):
        number, _, title = file.name.removesuffix(".sql").partition("_")
        if number != f"{expected:04}" or not title:
            # A gap or a number used twice is a faulty merge, which could not be corrected once applied.
            raise ConfigError(
                f"migration file {file.name!r} is out of order",
                hint=f"the migration in this place is called {expected:04}_<name>.sql",
            )
        text = file.read_text(encoding="utf-8")
        supports = _supports(text, file.name, version=expected, previous=supports)
        yield Migration(version=expected, name=file.name.removesuffix(".sql"), text=text, supports=supports)


def _supports(text: str, name: str, *, version: int, previous: int) -> int:
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        if line.startswith(_SUPPORTS):
            value = line.removeprefix(_SUPPORTS).strip()
            if value.isdecimal() and previous <= int(value) <= version:
                return int(value)
            raise ConfigError(
                f"migration file {name!r} says it supports {value!r}",
                hint=f"`{_SUPPORTS} N` takes a migration number from {previous} to {version}",
            )
    return previous
