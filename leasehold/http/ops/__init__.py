"""What operators see and do, under /ops. Each module adds its operations to the list."""

from leasehold.http.ops import fleet, jobs, schedules  # noqa: F401 (each adds its operations)
from leasehold.http.ops.serving import OPERATIONS

__all__ = ["OPERATIONS"]
