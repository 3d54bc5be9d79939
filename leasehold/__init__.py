"""Leasehold: a distributed asynchronous job platform for Python on PostgreSQL."""

__version__ = "0.1.0"
