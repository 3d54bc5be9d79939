"""One method per SQL function, grouped by who calls it. Each gives the call; nothing here runs anything."""

from leasehold.db.store.operator import Changed, Obstacle, OperatorCalls
from leasehold.db.store.overview import (
    AttemptRow,
    ErrorGroup,
    JobDetail,
    JobPage,
    JobRow,
    LimitRow,
    LogRow,
    OverviewCalls,
    QueueRow,
    WorkerRow,
)
from leasehold.db.store.producer import JobStatus, ProducerCalls, Refused, Seen, Submitted
from leasehold.db.store.schedules import ClaimedSchedule, ScheduleCalls, StoredSchedule
from leasehold.db.store.tokens import StoredToken, TokenCalls, TokenView
from leasehold.db.store.worker import ClaimedJob, Token, WorkerCalls

__all__ = [
    "AttemptRow",
    "Changed",
    "ClaimedJob",
    "ClaimedSchedule",
    "ErrorGroup",
    "JobDetail",
    "JobPage",
    "JobRow",
    "JobStatus",
    "LimitRow",
    "LogRow",
    "Obstacle",
    "QueueRow",
    "Refused",
    "Seen",
    "Store",
    "StoredSchedule",
    "StoredToken",
    "Submitted",
    "Token",
    "TokenView",
    "WorkerRow",
]


class Store(ProducerCalls, WorkerCalls, OperatorCalls, OverviewCalls, TokenCalls, ScheduleCalls):
    """The SQL API of one schema."""
