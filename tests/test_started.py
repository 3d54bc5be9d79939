"""The tests do not depend on how they were started."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

PROGRAM = """
import signal, subprocess, sys
import tests.conftest
child = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
sys.exit(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout.strip() != "True")
"""


def test_children_of_the_tests_can_be_interrupted_even_if_a_shell_started_them_in_the_background() -> None:
    shell = ["sh", "-c", 'trap "" INT; exec "$0" "$@"', sys.executable, "-c", PROGRAM]
    done = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
