"""One method per SQL function, grouped by who calls it. Each returns the call; nothing here runs anything."""

from leasehold.db.store.operator import (
    AttemptRow,
    Canary,
    Changed,
    ErrorGroup,
    JobDetail,
    JobPage,
    JobRow,
    LimitRow,
    LogRow,
    Obstacle,
    OperatorCalls,
    QueueRow,
    WorkerRow,
)  # fmt: skip
from leasehold.db.store.producer import IdMaker, JobStatus, ProducerCalls, Refused, Seen, Submitted
from leasehold.db.store.schedules import ClaimedSchedule, ScheduleCalls, StoredSchedule
from leasehold.db.store.statistics import Bucket, FlowRow, Rate, StatisticsCalls
from leasehold.db.store.system import Finding, HorizonHolder, Law, Names, Pruned, System, SystemCalls, TableRow
from leasehold.db.store.tokens import MadeToken, StoredToken, TokenCalls, TokenView
from leasehold.db.store.worker import ClaimedJob, Renewal, Reported, Token, WorkerCalls

__all__ = [
    "AttemptRow", "Bucket", "Canary", "Changed", "ClaimedJob", "ClaimedSchedule", "ErrorGroup", "Finding", "FlowRow",
    "HorizonHolder", "IdMaker", "JobDetail", "JobPage", "JobRow", "JobStatus", "Law", "LimitRow", "LogRow", "MadeToken",
    "Names", "Obstacle", "Pruned", "QueueRow", "Rate", "Refused", "Renewal", "Reported", "Seen", "Store",
    "StoredSchedule", "StoredToken", "Submitted", "System", "TableRow", "Token", "TokenView", "WorkerRow",
]  # fmt: skip


class Store(ProducerCalls, WorkerCalls, OperatorCalls, TokenCalls, ScheduleCalls, StatisticsCalls, SystemCalls):
    """The SQL API of one schema."""
