"""`python -m faults [SCENARIO …]`: run scenarios, print what they found, end with 1 on a violation, 2 on no verdict."""

import argparse
import importlib
import shutil
import sys
import tempfile
import time
from pathlib import Path

from faults.run import Run, Skip, Verdict, sentence
from faults.scenarios import MATRICES, SCENARIOS


def run(name: str, *, seed: int, full: bool, folder: Path) -> Verdict:
    """One scenario in a folder of its own. Raises Skip where it cannot run."""
    scenario = importlib.import_module(SCENARIOS[name])
    with Run(name, seed=seed, full=full, folder=folder, lease=_lease(name)) as made:
        getattr(scenario, name)(made)
        return made.verdict()


def _lease(name: str) -> float:
    """Seconds. In a matrix no lease may be lost because the machine is busy."""
    if name == "loops":  # workers die, and another of the same host releases what they held before its lease ends
        return 60.0
    if name == "frozen":  # a keeper has a quarter of a lease to connect again, while ten others do the same
        return 6.0
    if name == "settings":  # a timeout of a second ends renewals too, on a machine that has much else to do
        return 20.0
    return 4.0 if name in MATRICES else 2.0


def say(text: str) -> None:
    """Print, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def report(name: str, options: argparse.Namespace) -> int:
    """Run one and say what came of it."""
    base = Path(options.keep) if options.keep else Path(tempfile.mkdtemp(prefix="leasehold-faults-"))
    folder = base / f"{name}-{options.seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    base.chmod(0o755)
    say(f"{name}: seed {options.seed}, {options.size}")
    began = time.monotonic()
    try:
        verdict = run(name, seed=options.seed, full=options.size == "full", folder=folder)
    except Skip as reason:
        say(f"  skipped: {reason}")
        return 0
    say(f"  {sentence(verdict.facts)}; {time.monotonic() - began:.0f} s in all")
    for line in [*verdict.text.splitlines(), *verdict.problems]:
        say(f"  {line}")
    if verdict.code:
        say(f"  FAILED; its files are in {folder}; again: {again(name, options)}")
    elif not options.keep:
        shutil.rmtree(base, ignore_errors=True)
    return verdict.code


def again(name: str, options: argparse.Namespace) -> str:
    """How to do the same again."""
    return f"python -m faults {name} --seed {options.seed} --size {options.size}"


def main() -> int:
    """Run what was asked for, all without a name; the worst result is the exit code."""
    parser = argparse.ArgumentParser(prog="python -m faults")
    parser.add_argument("scenario", nargs="*", metavar="SCENARIO", help=f"any of: {', '.join(SCENARIOS)}; default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", choices=["ci", "small", "full"], default="full", help="ci and small are the same")
    parser.add_argument("--keep", metavar="DIR", help="keep what the runs leave here")
    options = parser.parse_args()
    if unknown := set(options.scenario) - set(SCENARIOS):
        parser.error(f"no scenario {', '.join(sorted(unknown))}; there are: {', '.join(SCENARIOS)}")
    codes = [report(name, options) for name in options.scenario or SCENARIOS]
    return 1 if 1 in codes else max(codes)


if __name__ == "__main__":
    sys.exit(main())
