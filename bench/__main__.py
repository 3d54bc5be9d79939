"""One command for every figure: `python -m bench`.

Starts a PostgreSQL of its own (stock settings, fsync and synchronous_commit on), runs Leasehold, the limit and the
peers in turn, and prints what was reached of what. docs/performance.md says how each figure is taken.
"""

import argparse
import json
import os
import platform
import signal
import sys
import time
from pathlib import Path
from typing import Any

import bench.alternatives
from bench import contestants, publish
from bench.cases import ORDER
from bench.lines import Line, printed
from bench.peers.install import install
from bench.server import Server, folder, started
from bench.suite import REGISTRY, Options, Run, run_cases, say

HERE = Path(__file__).parent
LATEST = HERE / "results" / "latest.json"
ALTERNATIVES = bench.alternatives.__all__
"""Importing them enters them into the registry."""


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these cases and no others")
    parser.add_argument("--skip", nargs="+", default=[], metavar="NAME", help="all but these")
    parser.add_argument("--list", action="store_true", help="say which cases there are, and end")
    parser.add_argument("--alternatives", action="store_true", help="the alternatives in place of the cases")
    parser.add_argument("--repeats", type=int, default=3, help="of each measurement (3)")
    parser.add_argument(
        "--size", choices=("small", "full"), default="full", help="small: seconds, to see that it works"
    )
    parser.add_argument("--full", action="store_true", help="with what takes minutes: 10 M rows, a sustained load")
    parser.add_argument("--sustained", type=float, default=60.0, metavar="SECONDS", help="of the sustained load (60)")
    parser.add_argument("--seconds", type=float, help="of each part that is bounded by time")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--install-peers", action="store_true", help="install the peers into bench/.peers, and end")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="of PostgreSQL")
    parser.add_argument("--json", type=Path, default=LATEST, help="where the figures go (bench/results/latest.json)")
    parser.add_argument("--publish", action="store_true", help="bring docs/performance.md and its picture up to date")
    parser.add_argument("--from-json", action="store_true", help="with --publish: from the figures that are there")
    given = parser.parse_args(argv)
    unknown = [name for name in (*given.only, *given.skip) if name not in REGISTRY]
    if unknown:
        parser.error(f"no case {', '.join(unknown)}; there are: {', '.join(REGISTRY)}")
    if given.repeats < 1:
        parser.error(f"--repeats {given.repeats} is less than 1")
    if any("=" not in setting for setting in given.setting):
        parser.error("--setting wants NAME=VALUE")
    return given


def chosen(given: argparse.Namespace) -> list[str]:
    """The cases to run, in the order of the table."""
    order = [*ORDER, *(name for name in REGISTRY if name not in ORDER)]
    if given.only:
        return [name for name in order if name in given.only]
    return [
        name
        for name in order
        if name not in given.skip
        and REGISTRY[name].alternative == given.alternatives
        and (given.full or not REGISTRY[name].long)
    ]


def measured(given: argparse.Namespace) -> dict[str, Any]:
    """Run, and give everything that is worth keeping."""
    options = Options(
        repeats=given.repeats, small=given.size == "small", full=given.full, peers=not given.no_peers,
        seconds=given.seconds, sustained=given.sustained,
    )  # fmt: skip
    contestants.prepare_scripts()
    began = time.monotonic()
    settings = dict(setting.split("=", 1) for setting in given.setting)
    with (
        folder() as place,
        started(place / "server", settings) as server,
    ):
        machine = about(server, options)
        say(", ".join(f"{name} {value}" for name, value in machine["settings"].items()))
        run = Run(server, options)
        lines = run_cases(run, chosen(given))
    foreign = [one["foreign_cores"] for one in run.raw if "foreign_cores" in one]
    machine["foreign_cores"] = {"median": sorted(foreign)[len(foreign) // 2], "most": max(foreign)} if foreign else None
    machine["minutes"] = round((time.monotonic() - began) / 60, 1)
    return {"machine": machine, "lines": [line.as_json() for line in lines], "measurements": run.raw}


def about(server: Server, options: Options) -> dict[str, Any]:
    """Where and how the figures were taken."""
    return {
        "at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "settings": server.settings(),
        "repeats": options.repeats,
        "size": "small" if options.small else "full",
    }


def main(argv: list[str] | None = None) -> int:
    """Do it. The exit code says only whether it ran, never how well."""
    given = arguments(argv)
    if given.list:
        for one in REGISTRY.values():
            print(f"{one.name:24} {one.doc}")
        return 0
    if given.install_peers:
        return 0 if install() else 1
    if given.from_json:
        found = json.loads(given.json.read_text())
    else:
        found = measured(given)
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    print(publish.headline(found["machine"]))
    print(printed([as_line(one) for one in found["lines"]]))
    if given.publish:
        publish.publish(found)
    return 0


def as_line(one: dict[str, Any]) -> Line:
    """A line as it was written."""
    return Line(
        **{name: tuple(value) if name == "values" else value for name, value in one.items() if name != "median"}
    )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server and its folder go too
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
