"""`python -m faults.checker DIRECTORY`."""

import sys

from faults.checker.judge import check


def main(arguments: list[str]) -> int:
    """Print the verdict; give the exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m faults.checker DIRECTORY\n")
        return 2
    verdict = check(arguments[0])
    sys.stdout.write(f"{verdict}\n")
    return verdict.exit_status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
