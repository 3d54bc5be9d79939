"""Seeded bugs: small edits of our own SQL functions, each of which breaks a law that the checker must notice.

A checker that finds nothing proves nothing until it has been seen to find something. Each mutant is made in a database
of its own, out of the functions as they stand there, and names the law under which it has to be caught.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from faults.interleavings import GATE
from faults.workload import PATIENCE

NO_GUARD: Final = "drop trigger jobs_transition on jobs"
"""What the transition guard would refuse is only seen where it is off: behind it these mutants fail with an error."""

LINGER: Final = (
    "create function linger(ids uuid[]) returns uuid[] language plpgsql as $$ begin"
    f" if current_setting('application_name') like 'slow %' then perform pg_advisory_xact_lock_shared({GATE}); end if;"
    " return ids; end $$"
)


@dataclass(frozen=True, slots=True)
class Edit:
    """A piece of a function's text, and what stands in its place; every occurrence is replaced."""

    function: str
    old: str
    new: str

    def apply(self, text: str) -> str:
        """The function's text with the edit in it."""
        if self.old not in text:
            raise LookupError(f"{self.function} no longer contains {self.old!r}: the mutant has to follow it")
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One bug."""

    law: str
    """The rule that has to catch it."""
    edits: Sequence[Edit] = ()
    statements: Sequence[str] = ()
    patience: float = PATIENCE
    """How long the workload waits for what this bug may keep from coming."""

    def install(self, connection: psycopg.Connection[Any]) -> None:
        """Put the bug into a database whose search_path is our schema."""
        for statement in self.statements:
            connection.execute(statement)
        for function in {edit.function: None for edit in self.edits}:
            row = connection.execute("select pg_get_functiondef(%s::regproc)", [function]).fetchone()
            text = row[0] if row else ""
            for edit in self.edits:
                if edit.function == function:
                    text = edit.apply(text)
            connection.execute(text)


MUTANTS: Final[dict[str, Mutant]] = {
    "heartbeat without the token": Mutant(
        law="old_tokens_renew_nothing",
        edits=[Edit("renew_v1", "owns(j, worker, t.attempt,", "owns(j, worker, j.attempt,")],
    ),
    "heartbeat renews what has expired": Mutant(
        law="expired_leases_stay_lost",
        edits=[Edit("renew_v1", "t.claim_id, at)", "t.claim_id, '-infinity')")],
    ),
    "complete of what has expired": Mutant(
        law="expired_leases_end_nothing",
        edits=[Edit("succeed", "t.claim_id, at)", "t.claim_id, '-infinity')")],
    ),
    "renewed is said of what was not": Mutant(
        law="renewals_are_real",
        edits=[Edit("renew_v1", "then 'busy' else", "then 'renewed' else")],
    ),
    "complete without the token": Mutant(
        law="accepted_reports_are_the_owners",
        edits=[Edit("succeed", "owns(j, worker, t.attempt,", "owns(j, worker, j.attempt,")],
    ),
    "complete without owner and state": Mutant(
        law="states_move_along_the_table",
        edits=[Edit("succeed", "owns(j, worker, t.attempt, t.claim_id, at)", "j.attempt = t.attempt")],
        statements=[NO_GUARD],
    ),
    "complete forgets that it was answered": Mutant(
        law="accepted_reports_are_the_owners",
        edits=[Edit("succeed", "and j.finished_by = worker", "and false")],
    ),
    "fail without the token": Mutant(
        law="ends_were_reported",
        edits=[Edit("fail_many_v1", "owns(j, worker, f.attempt,", "owns(j, worker, j.attempt,")],
    ),
    "fail counts twice": Mutant(
        law="failures_are_counted_once",
        edits=[Edit("fail_many_v1", "set retry_count = j.retry_count + f", "set retry_count = j.retry_count + 2 * f")],
        statements=["alter table jobs drop constraint jobs_within_budget"],
    ),
    "release without the token": Mutant(
        law="accepted_reports_are_the_owners",
        edits=[Edit("release_v1", "owns(j, worker, t.attempt,", "owns(j, worker, j.attempt,")],
    ),
    "release leaves no record": Mutant(
        law="every_attempt_is_on_record",
        edits=[Edit("release_v1", "r.claimed_at, at from released r", "r.claimed_at, at from released r where false")],
    ),
    "the lease begins when the transaction did": Mutant(
        law="leases_are_not_short",
        edits=[Edit("take", "at constant timestamptz := clock();", "at constant timestamptz := now();")],
    ),
    "a subquery for each row instead of one look": Mutant(
        law="claims_take_what_they_asked_for",
        edits=[
            Edit(
                "take",
                "where j.id = any(ids) and j.state is not distinct from 'queued'",
                "where j.state = 'queued' and not j.parked and j.kind = any(kinds)"
                " and j.id = (select s.id from jobs s where s.queue = j.queue and s.state = 'queued' and not s.parked"
                " order by s.id limit 1 for update skip locked)",
            )
        ],
    ),
    "the attempt is counted at the finish": Mutant(
        law="attempts_have_no_gaps",
        patience=2,  # no sweep ends such an attempt
        edits=[
            Edit("take", "attempt = j.attempt + 1, claim_id", "claim_id"),
            Edit("succeed", "set state = 'success',", "set state = 'success', attempt = j.attempt + 1,"),
        ],
    ),
    "a repeated claim is a new one": Mutant(
        law="claims_take_what_they_asked_for",
        edits=[Edit("begin_claim", "return coalesce(", "return false and coalesce(")],
    ),
    "claim_job takes what runs": Mutant(
        law="only_claims_change_the_owner",
        edits=[
            Edit("take_one", "target.state <> 'queued' or bounds.pauses", "bounds.pauses"),
            Edit("take_one", "j.id = job_id and j.state is not distinct from 'queued'", "j.id = job_id"),
            Edit("take", " and j.state is not distinct from 'queued'", ""),
        ],
    ),
    "sweep without looking at the expiry": Mutant(
        law="leases_do_not_overlap",
        edits=[
            Edit("sweep_v1", " and j.lease_expires_at <= at", ""),
            Edit("expire", " and j.lease_expires_at <= at", ""),
        ],
    ),
    "sweep reads first and writes later": Mutant(
        law="leases_do_not_overlap",
        edits=[
            Edit("sweep_v1", "isolated('expire', array(", "isolated('expire', linger(array("),
            Edit("sweep_v1", "limit sweep_v1.max for no key update skip locked));", "limit sweep_v1.max)));"),
            Edit("expire", " and j.state is not distinct from 'running' and j.lease_expires_at <= at", ""),
        ],
        statements=[LINGER],
    ),
    "sweep counts no failure": Mutant(
        law="every_attempt_is_on_record",
        edits=[Edit("expire", "set retry_count = j.retry_count + 1,", "set")],
    ),
    "dead one failure early": Mutant(
        law="the_budget_is_the_end",
        edits=[Edit("verdict", "(failures < max_attempts)", "(failures < max_attempts - 1)")],
    ),
    "a limit is counted without its lock": Mutant(
        law="limits_hold_at_all_times",
        edits=[
            Edit("take_limits", " for no key update skip locked", ""),
            Edit("admit_lanes", "    room := case", "    perform linger(null);\n    room := case"),
        ],
        statements=[LINGER],
    ),
    "no unique index on idempotency keys": Mutant(
        law="one_job_a_key",
        statements=["drop index jobs_idempotency_key"],
    ),
    "a used key answers with a new id": Mutant(
        law="one_job_a_key",
        edits=[Edit("found_jobs", "array(select a.id from", "array(select uuidv7() from")],
    ),
    "promote does not look at the time": Mutant(
        law="nothing_runs_before_its_time",
        edits=[Edit("promote_v1", " and j.run_at <= at", "")],
    ),
    "future jobs are queued, and claimed": Mutant(
        law="nothing_runs_before_its_time",
        edits=[
            Edit("rows_of", "when accepted and coalesce(i.run_at, at + i.run_after, at) <= at", "when accepted"),
            Edit("lock_in_lane", "and j.run_at <= lock_in_lane.at", ""),
        ],
    ),
    "a success is opened again": Mutant(
        law="states_move_along_the_table",
        edits=[Edit("retry_v1", "j.state is not distinct from 'dead'", "j.state in ('dead', 'success')")],
        statements=[NO_GUARD],
    ),
    "a claim ignores the exclusive key": Mutant(
        law="one_runs_per_exclusive_key",
        edits=[
            Edit(
                "settle_exclusive",
                "  return array(select j.id from jobs j where j.id = any(candidates) and j.exclusive_key is null)",
                "  won := candidates; return '{}'",
            )
        ],
        statements=["drop index jobs_current", "alter table jobs drop constraint jobs_exclusive"],
    ),
    "no job behind an exclusive key is unparked": Mutant(
        law="everything_ends",
        edits=[Edit("unpark", "with recursive lane(key", "return; with recursive lane(key")],
    ),
    "a schedule fires without its lock and key": Mutant(
        law="one_fire_a_due_time",
        edits=[
            Edit("schedule_fire_v1", "if s.last_claim_id = token then", "if false then"),
            Edit("schedule_fire_v1", "if s.locked_by is distinct from worker or s.claim_id", "if false and s.claim_id"),
            Edit("schedule_fire_v1", "or s.next_run_at is distinct from was", ""),
            Edit("schedule_fire_v1", "due_after = s.claimed_at", "due_after = clock()"),
            Edit("schedule_fire_v1", "schedule_intent_key(s.key, due_at)", "null"),
        ],
    ),
    "cancel removes the row": Mutant(
        law="nothing_appears_or_vanishes",
        edits=[Edit("cancel_v1", "  return true;", "  delete from jobs j where j.id = before.id; return true;")],
    ),
}  # fmt: skip

UNNAMED_SETTING: Final = Mutant(
    law="what stops a worker is named",
    edits=[
        Edit("doctor_settings", "('default_transaction_read_only', '^(on", "('default_transaction_read_only', '^(never")
    ],
)
"""`leasehold doctor` does not know a setting. For the matrix `settings`, whose law this is."""

UNREADABLE_TIMES: Final = Mutant(
    law="what was taken can be looked at",
    statements=[
        "create or replace function is_readable(moment timestamptz) returns boolean language sql immutable return true"
    ],
)
"""An entry check that is missing: infinite times are taken. For the matrix `poison`, whose law this is."""
