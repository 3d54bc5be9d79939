"""Judges the history of a fault run. Independent of what it judges: nothing of Leasehold is imported here.

    python -m faults.checker DIRECTORY

Exit status 0: the history says enough and breaks no law; 1: it breaks some; 2: it says too little to be judged, which
is never a pass. FORMAT.md, one folder up, says what the directory holds.
"""

from faults.checker.history import History, Invalid
from faults.checker.judge import RULES, Verdict, check, judge
from faults.checker.violation import Violation

__all__ = ["RULES", "History", "Invalid", "Verdict", "Violation", "check", "judge"]
