"""Leasehold: a distributed asynchronous job platform for Python on PostgreSQL.

Programs import the names below, `leasehold.errors`, `leasehold.client` and `leasehold.cron`; everything else, modules
with a leading underscore above all, may change in any release.
"""

from leasehold._mounting import api
from leasehold.app import App
from leasehold.context import JobContext, current_job
from leasehold.errors import (
    ConfigError,
    DatabaseUnavailable,
    IdempotencyConflict,
    InvalidArguments,
    InvalidJob,
    JobCancelled,
    JobFailed,
    JobUnknown,
    LeaseholdError,
    LeaseLost,
    ResultTimeout,
    SchemaMismatch,
)
from leasehold.intent import Intent
from leasehold.job import Job
from leasehold.outcome import Cancel, Retry, Snooze
from leasehold.retry import ExponentialBackoff, FixedDelay, NoRetry, RetryPolicy
from leasehold.schedule import Schedule
from leasehold.task import Task
from leasehold.version import __version__

__all__ = [
    "App", "Cancel", "ConfigError", "DatabaseUnavailable", "ExponentialBackoff", "FixedDelay", "IdempotencyConflict",
    "Intent", "InvalidArguments", "InvalidJob", "Job", "JobCancelled", "JobContext", "JobFailed", "JobUnknown",
    "LeaseLost", "LeaseholdError", "NoRetry", "ResultTimeout", "Retry", "RetryPolicy", "Schedule", "SchemaMismatch",
    "Snooze", "Task", "__version__", "api", "current_job",
]  # fmt: skip
