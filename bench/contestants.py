"""Who is measured: Leasehold in its configurations, raw rows, and the peers, each in the best one we found."""

import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from bench.peers import install

HERE = Path(__file__).parent / "peers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """How to run one."""

    name: str
    script: str
    unfinished: str
    """Counts the jobs that are not finished."""
    slots: int = 10
    prefetch: int = 0
    mode: str = ""
    share: float = 1.0
    """Slow ones get this part of the jobs, so that a run ends the same day."""
    latency_slots: int = 10
    """What it is given to be quick rather than fast."""

    @property
    def command(self) -> list[str]:
        """What to start."""
        if self.script.endswith(".mjs"):
            return [str(install.node()), str(install.HOME / "node" / self.script)]
        return [sys.executable if self.ours else str(install.PYTHON), str(HERE / self.script)]

    @property
    def ours(self) -> bool:
        return self.script in ("leasehold_.py", "raw_.py")

    @property
    def template(self) -> str:
        """The database that has its tables."""
        return "t_leasehold" if self.ours else "t_" + self.script.partition(".")[0].rstrip("_")

    @property
    def missing(self) -> str | None:
        """Why it cannot be run, if it cannot."""
        if self.ours:
            return None
        if self.script.endswith(".mjs"):
            package = {"graphile.mjs": "graphile-worker", "pgboss.mjs": "pg-boss"}[self.script]
            there = install.node() is not None and (install.MODULES / package).exists()
        else:
            package = self.script.rstrip("py").rstrip("._")
            there = bool(list((install.HOME / "python").glob(f"lib/python*/site-packages/{package}")))
        return None if there else "not installed (make bench-peers)"

    def jobs(self, wanted: int) -> int:
        """How many of so many it gets."""
        return max(100, int(wanted * self.share))


_LEFT = "select count(*) from leasehold.jobs where state <> 'success'"
LEASEHOLD = Contestant(name="leasehold", script="leasehold_.py", unfinished=_LEFT, slots=500, prefetch=1500)
SLOTS_ONLY = replace(LEASEHOLD, name="leasehold, 100 slots", slots=100, prefetch=0)
RAW = Contestant(name="raw rows", script="raw_.py", unfinished=_LEFT)

PEERS = (
    Contestant(
        name="graphile-worker", script="graphile.mjs", slots=50,
        unfinished="select count(*) from graphile_worker._private_jobs",
    ),
    Contestant(
        name="pg-boss", script="pgboss.mjs", slots=500, latency_slots=10,
        unfinished="select count(*) from pgboss.job where name = 'noop' and state < 'completed'",
    ),
    Contestant(
        name="pgqueuer", script="pgqueuer_.py", slots=100, share=0.5,
        unfinished="select count(*) from pgqueuer",
    ),
    Contestant(
        name="oban", script="oban_.py", slots=100, share=0.05,
        unfinished="select count(*) from oban_jobs where state <> 'completed'",
    ),
    Contestant(
        name="chancy", script="chancy_.py", slots=100, share=0.05,
        unfinished="select count(*) from chancy_jobs where state not in ('succeeded', 'failed')",
    ),
    Contestant(
        name="procrastinate", script="procrastinate_.py", slots=10, share=0.015,
        unfinished="select count(*) from procrastinate_jobs where status in ('todo', 'doing')",
    ),
)  # fmt: skip


def prepare_scripts() -> None:
    """Scripts for Node find their packages from where they lie."""
    if (install.HOME / "node").exists():
        for script in HERE.glob("*.mjs"):
            shutil.copy(script, install.HOME / "node")
