"""A law that was broken."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """One finding."""

    rule: str
    """The law's name."""
    subject: str
    """The job, key, limit or schedule."""
    detail: str
    """What was found, in words."""

    def __str__(self) -> str:
        return f"{self.rule}: {self.subject}: {self.detail}"
