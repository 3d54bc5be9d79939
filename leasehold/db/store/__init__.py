"""One method per SQL function, grouped by who calls it. Each gives the call; nothing here runs anything."""

from leasehold.db.store.operator import Obstacle, OperatorCalls
from leasehold.db.store.producer import JobStatus, ProducerCalls
from leasehold.db.store.worker import ClaimedJob, Token, WorkerCalls

__all__ = ["ClaimedJob", "JobStatus", "Obstacle", "Store", "Token"]


class Store(ProducerCalls, WorkerCalls, OperatorCalls):
    """The SQL API of one schema."""
