import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from leasehold.db.migrations.migrate import Source

TABLE = """
create table thing (id bigint primary key, note text not null default 'a%b');
do $$ begin perform 1; end $$;
create index thing_note on thing (note);
"""
FUNCTION = """
create or replace function things() returns bigint
language sql stable set search_path from current
as $$ select count(*) from thing $$;
"""


class Files:
    """A directory of SQL files that a test makes up."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def migration(self, name: str, text: str) -> "Files":
        return self._write("migrations", name, text)

    def function(self, name: str, text: str) -> "Files":
        return self._write("functions", name, text)

    @property
    def source(self) -> Source:
        return Source.load(self.root)

    def _write(self, kind: str, name: str, text: str) -> "Files":
        path = self.root / kind / f"{name}.sql"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return self


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """One migration and one function file."""
    return Files(tmp_path / "sql").migration("0001_things", TABLE).function("things", FUNCTION)


@pytest.fixture(scope="session")
def program(server) -> Callable[[str], Path]:
    """A client program of the server's own version: an older pg_dump refuses a newer server."""

    def find(name: str) -> Path:
        directory = getattr(server, "bin_dir", None)
        if directory is None or not (directory / name).exists():
            pytest.skip(f"this PostgreSQL comes without {name}")
        return Path(directory / name)

    return find


@pytest.fixture
def dump(program) -> Callable[[str], str]:
    """The schema of a database as text that is equal for equal schemas."""

    def dumped(dsn: str) -> str:
        found = subprocess.run(
            [program("pg_dump"), "--schema-only", dsn], check=True, capture_output=True, text=True, timeout=60
        )
        # \restrict carries a random token.
        lines = (line.rstrip() for line in found.stdout.splitlines())
        return "\n".join(line for line in lines if line and not line.startswith(("--", "\\restrict", "\\unrestrict")))

    return dumped
