"""The worker: claims jobs, runs them under their leases, reports what came of them."""

from leasehold.worker.options import WorkerOptions
from leasehold.worker.worker import Worker

__all__ = ["Worker", "WorkerOptions"]
