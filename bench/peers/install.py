"""Installs the peers into bench/.peers, in the versions that requirements.txt and package.json pin.

    python -m bench --install-peers

What cannot be installed is left out and said so: the suite reports it as "not run".
"""

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
HOME = HERE.parent / ".peers"
PYTHON = HOME / "python" / "bin" / "python"
MODULES = HOME / "node" / "node_modules"


def node() -> Path | None:
    """The Node that was installed with the peers."""
    return next((path for path in sorted(MODULES.glob("node-linux-*/bin/node"))), None)


def install() -> bool:
    """Install all of it; whether everything went well."""
    HOME.mkdir(exist_ok=True)
    return _python_peers() & _node_peers()


def _python_peers() -> bool:
    found = _recent_python()
    if found is None:
        print("no Python 3.12 or later: the peers in Python are left out", file=sys.stderr)
        return False
    if not PYTHON.exists() and not _ran([found, "-m", "venv", str(HOME / "python")]):
        return False
    return _ran([str(PYTHON), "-m", "pip", "install", "--quiet", "-r", str(HERE / "requirements.txt")])


def _node_peers() -> bool:
    npm = shutil.which("npm")
    if npm is None:
        print("no npm: the peers for Node are left out", file=sys.stderr)
        return False
    folder = HOME / "node"
    folder.mkdir(exist_ok=True)
    shutil.copy(HERE / "package.json", folder)
    return _ran([npm, "install", "--no-package-lock", "--no-audit", "--no-fund"], cwd=folder)


def _recent_python() -> str | None:
    names = [sys.executable, "python3.14", "python3.13", "python3.12"]
    names += sorted(map(str, Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python")))
    for name in names:
        path = shutil.which(name)
        code = "import sys; sys.exit(sys.version_info < (3, 12))"
        if path and subprocess.run([path, "-c", code], check=False, capture_output=True).returncode == 0:
            return path
    return None


def _ran(command: list[str], cwd: Path | None = None) -> bool:
    print(" ".join(command), file=sys.stderr)
    return subprocess.run(command, cwd=cwd, check=False).returncode == 0
