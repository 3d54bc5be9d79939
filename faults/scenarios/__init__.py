"""What is done to the system. Each scenario is a function of its own name in one of these modules."""

from typing import Final

SCENARIOS: Final = {
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
"""Each scenario with its module."""
