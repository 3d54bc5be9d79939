"""Promises about time: kept to the letter in the full run, with room for a machine that is busy elsewhere."""

import os

FULL = os.environ.get("LEASEHOLD_SURVIVAL") == "full"
"""Set by `make survival`, which wants a quiet machine."""


def bound(seconds: float) -> float:
    """The promised bound in the full run; elsewhere more, and the more the busier the machine is: that is no defect."""
    return seconds if FULL else seconds + 5 + 5 * os.getloadavg()[0] / (os.cpu_count() or 1)
