"""A small shop's background work, to look at Leasehold with: `leasehold dev`."""

from leasehold.demo.tasks import app

__all__ = ["app"]
