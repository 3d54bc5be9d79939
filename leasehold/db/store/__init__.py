"""One method per SQL function, grouped by who calls it. Each gives the call; nothing here runs anything."""

from leasehold.db.store.canary import Canary, CanaryCalls
from leasehold.db.store.doctor import DoctorCalls, Finding, Names
from leasehold.db.store.history import EventRow, HistoryCalls, Law, Pruned
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
from leasehold.db.store.statistics import Bucket, FlowRow, Rate, Span, StatisticsCalls
from leasehold.db.store.system import Holder, System, SystemCalls, TableRow
from leasehold.db.store.tokens import StoredToken, TokenCalls, TokenView
from leasehold.db.store.worker import ClaimedJob, Renewal, Reported, Token, WorkerCalls

__all__ = [
    "AttemptRow",
    "Bucket",
    "Canary",
    "Changed",
    "ClaimedJob",
    "ClaimedSchedule",
    "ErrorGroup",
    "EventRow",
    "Finding",
    "FlowRow",
    "Holder",
    "JobDetail",
    "JobPage",
    "JobRow",
    "JobStatus",
    "Law",
    "LimitRow",
    "LogRow",
    "Names",
    "Obstacle",
    "Pruned",
    "QueueRow",
    "Rate",
    "Refused",
    "Renewal",
    "Reported",
    "Seen",
    "Span",
    "Store",
    "StoredSchedule",
    "StoredToken",
    "Submitted",
    "System",
    "TableRow",
    "Token",
    "TokenView",
    "WorkerRow",
]


class Store(
    ProducerCalls,
    WorkerCalls,
    OperatorCalls,
    OverviewCalls,
    TokenCalls,
    ScheduleCalls,
    DoctorCalls,
    HistoryCalls,
    StatisticsCalls,
    SystemCalls,
    CanaryCalls,
):
    """The SQL API of one schema."""
