"""The cases, in the order of the table. Importing them enters them into the registry."""

from bench.cases import (
    drain,
    enqueue,
    growth,
    horizon,
    http,
    idle,
    latency,
    limits,
    memory,
    producers,
    sustained,
)

__all__ = [
    "drain", "enqueue", "growth", "horizon", "http", "idle", "latency", "limits", "memory", "producers", "sustained",
]  # fmt: skip

ORDER = (
    "drain", "bulk", "single", "latency", "half-load", "growth", "growth-10m", "horizon", "limits", "producers", "http",
    "idle", "memory", "sustained",
)  # fmt: skip
"""As the table has them."""
