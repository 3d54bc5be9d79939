"""What is done to the system. Each scenario is a function of its own name in one of these modules."""

from typing import Final

_IN: Final = {
    "kills": "workers",
    "pauses": "workers",
    "failpoints": "workers",
    "clock": "workers",
    "tasks": "workers",
    "schedules": "workers",
    "postgres": "database",
    "enospc": "database",
    "pooler": "database",
    "cuts": "network",
    "api": "api",
    "failover": "replicas",
    "failover_control": "replicas",
    "unreplicated": "replicas",
    "patroni": "patroni",
    "soak": "soak",
}

MATRICES: Final = ("sleeping", "poison", "frozen", "loops", "settings")
"""Scenarios that cross everything with everything: each is a module of `faults.matrix`."""

SCENARIOS: Final = {name: f"faults.scenarios.{module}" for name, module in _IN.items()} | {
    name: f"faults.matrix.{name}" for name in MATRICES
}
"""Each scenario with its module."""
