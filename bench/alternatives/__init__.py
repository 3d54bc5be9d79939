"""Other ways to build Leasehold, each measured against the one that was taken: `python -m bench --alternatives`."""

from bench.alternatives import calls, limit_look, rows, submitter

__all__ = ["calls", "limit_look", "rows", "submitter"]
