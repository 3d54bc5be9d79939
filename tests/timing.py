"""Promises about time: kept to the letter in the full run, with room for a machine that is busy elsewhere."""

import os

FULL = os.environ.get("LEASEHOLD_SURVIVAL") == "full"
"""Set by `make survival`, which wants a quiet machine."""


def bound(seconds: float) -> float:
    """The promised bound in the full run; elsewhere five seconds more, since a stalled machine is not a defect."""
    return seconds if FULL else seconds + 5
