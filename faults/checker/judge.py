"""The verdict: whether the history can be judged at all, and what it breaks."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from faults.checker import budgets, fencing, intents, limits, ownership, schedules, timing, transitions
from faults.checker.history import History, Invalid
from faults.checker.violation import Violation

Rule = Callable[[History], Iterator[Violation]]

RULES: Final[tuple[Rule, ...]] = (
    intents.acknowledged_jobs_end,
    intents.no_phantoms,
    intents.one_job_a_key,
    intents.nothing_appears_or_vanishes,
    intents.everything_ends,
    transitions.states_move_along_the_table,
    transitions.only_claims_change_the_owner,
    ownership.attempts_have_no_gaps,
    ownership.tokens_are_unique,
    ownership.leases_do_not_overlap,
    ownership.expired_leases_stay_lost,
    ownership.expired_leases_end_nothing,
    ownership.renewals_are_real,
    ownership.leases_are_not_short,
    ownership.claims_take_what_they_asked_for,
    fencing.accepted_reports_are_the_owners,
    fencing.ends_were_reported,
    fencing.old_tokens_renew_nothing,
    fencing.effects_have_their_tokens,
    fencing.accepted_effects_keep_their_order,
    fencing.every_success_has_its_effect,
    budgets.failures_are_counted_once,
    budgets.the_budget_is_the_end,
    budgets.every_attempt_is_on_record,
    timing.nothing_runs_before_its_time,
    limits.limits_hold_at_all_times,
    limits.one_runs_per_exclusive_key,
    schedules.one_fire_a_due_time,
    schedules.every_scheduled_job_has_its_due_time,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of a check."""

    invalid: str | None = None
    """Why the history cannot be judged."""
    violations: tuple[Violation, ...] = ()
    counted: str = ""
    """What was looked at, in words."""

    @property
    def passed(self) -> bool:
        """Whether the history says enough and breaks no law."""
        return self.invalid is None and not self.violations

    @property
    def exit_status(self) -> int:
        """0 passed, 1 laws broken, 2 not to be judged."""
        return 2 if self.invalid is not None else 1 if self.violations else 0

    @property
    def broken(self) -> frozenset[str]:
        """The names of the laws that were broken."""
        return frozenset(violation.rule for violation in self.violations)

    def __str__(self) -> str:
        if self.invalid is not None:
            return f"INVALID: {self.invalid}"
        if not self.violations:
            return f"PASSED: {len(RULES)} laws held over {self.counted}"
        head = ", ".join(f"{rule} {times}" for rule, times in Counter(v.rule for v in self.violations).items())
        return "\n".join([f"FAILED: {head} (over {self.counted})", *map(str, self.violations[:50])])


def check(directory: str | Path) -> Verdict:
    """Judge the history in a directory."""
    try:
        return judge(History.load(directory))
    except (Invalid, KeyError, TypeError) as error:
        return Verdict(invalid=str(error) if isinstance(error, Invalid) else f"a line lacks a field: {error!r}")


def judge(history: History) -> Verdict:
    """Judge a history."""
    if (why := _unfit(history)) is not None:
        return Verdict(invalid=why)
    claims = sum(event.claims for event in history.events)
    counted = f"{len(history.jobs)} jobs, {claims} claims, {len(history.events)} events, {len(history.calls)} calls"
    return Verdict(violations=tuple(found for rule in RULES for found in rule(history)), counted=counted)


def _unfit(history: History) -> str | None:
    """Why the history says too little. An empty one breaks no law, and proves nothing."""
    answered = any(call.outcome != "unknown" for call in history.calls)
    acknowledged = any(call.outcome == "ok" for call in history.asked("enqueue", "fire"))
    counted = history.end["jobs"] if history.end else None
    wanting = (
        (not history.calls, "no program logged any call"),
        (not answered, "no call was answered"),
        (not acknowledged, "no job was acknowledged"),
        (not history.events, "the database recorded no event: was history(true) called?"),
        (not any(event.claims for event in history.events), "no job was ever claimed"),
        (history.end is None, "final.jsonl has no end: the dump is not whole"),
        (counted != len(history.jobs), f"final.jsonl counts {counted} jobs and holds {len(history.jobs)}"),
    )
    return next((why for true, why in wanting if true), None)
