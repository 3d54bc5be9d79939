"""The worker: claims jobs, runs them under their leases, reports what came of them."""

from leasehold.worker.worker import Worker, WorkerOptions

__all__ = ["Worker", "WorkerOptions"]
