"""Laws of ownership: tokens without gaps, leases that do not overlap, claims that take what they asked for."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from faults.checker.history import History
from faults.checker.violation import Violation


def attempts_have_no_gaps(history: History) -> Iterator[Violation]:
    """A claim's token is the one before it plus one; nothing else changes it."""
    for before, event in history.pairs():
        had = before.attempt if before else 0
        expected = had + 1 if event.claims else had
        if event.attempt != expected:
            what = f"{event.before} -> {event.after}"
            yield Violation("attempts_have_no_gaps", event.job, f"{what}: attempt {had} became {event.attempt}")


def tokens_are_unique(history: History) -> Iterator[Violation]:
    """No token of a job is given out twice, and no claim takes a job twice."""
    tokens = Counter((event.job, event.attempt) for event in history.events if event.claims)
    for (job, attempt), times in tokens.items():
        if times > 1:
            yield Violation("tokens_are_unique", job, f"attempt {attempt} was given out {times} times")
    claims = Counter((event.job, event.claim) for event in history.events if event.claims and event.claim)
    for (job, claim), times in claims.items():
        if times > 1:
            yield Violation("tokens_are_unique", job, f"claim {claim} took it {times} times")


def leases_do_not_overlap(history: History) -> Iterator[Violation]:
    """No lease is taken away before it has expired.

    A row has one owner at a time, so two live leases on one job mean that another session ended the first one early.
    """
    for before, event in history.pairs():
        if before is None or before.expires is None:
            continue
        if event.swept(before) and event.at < before.expires:
            early = before.expires - event.at
            yield Violation("leases_do_not_overlap", event.job, f"attempt {event.attempt} swept {early:.3f} s early")


def expired_leases_stay_lost(history: History) -> Iterator[Violation]:
    """A lease that has expired is not renewed: another worker may have the job."""
    leases = history.expected.get("leases", {})
    for before, event in history.pairs():
        if before is None or not event.renews or event.kind not in leases:
            continue
        if event.expires is not None and before.expires is not None and event.attempt == before.attempt:
            late = event.expires - leases[event.kind] - before.expires
            # Times come as binary fractions: a microsecond either way is none.
            if late > 0.000_01:
                yield Violation("expired_leases_stay_lost", event.job, f"renewed {late:.3f} s after it had expired")


def expired_leases_end_nothing(history: History) -> Iterator[Violation]:
    """A worker whose lease has expired ends nothing, swept or not.

    Certain where it asked only afterwards. Of a worker that logs no calls it is believed after a while: between the
    look at the clock and the record of the change there may be a wait for a lock.
    """
    asked = {
        (call.asked["job"], call.asked["attempt"]): call.asked["at"]
        for call in history.asked("complete", "fail", "release")
        if call.accepted
    }
    for before, event in history.pairs():
        if before is None or before.expires is None or not event.ends or event.swept(before):
            continue
        late = event.at - before.expires
        known = asked.get((event.job, event.attempt), 0.0) > before.expires
        if (late > 0 and known) or (late > 5 and event.after in ("success", "retry")):
            what = f"attempt {event.attempt} became {event.after} {late:.3f} s after its lease had expired"
            yield Violation("expired_leases_end_nothing", event.job, what)


def renewals_are_real(history: History) -> Iterator[Violation]:
    """Where a worker got the answer that its lease was renewed, it was."""
    renewed: dict[tuple[str, int], list[float]] = defaultdict(list)
    for event in history.events:
        if event.renews:
            renewed[event.job, event.attempt].append(event.at)
    for call in history.asked("heartbeat"):
        if not call.accepted or call.answer is None:
            continue
        job, attempt = call.asked["job"], call.asked["attempt"]
        # One host, one clock; a little is for how it is read.
        first, last = call.asked["at"] - 0.1, call.answer["at"] + 0.1
        if not any(first <= at <= last for at in renewed[job, attempt]):
            yield Violation(
                "renewals_are_real", job, f"attempt {attempt} got the answer that it was renewed, and was not"
            )


def leases_are_not_short(history: History) -> Iterator[Violation]:
    """A lease is counted from when the job was taken, not from when the claim began to wait for it."""
    leases = history.expected.get("leases", {})
    after = {
        (job, attempt): call.answer["after"]
        for call in history.asked("claim")
        if call.answer and call.answer.get("after") is not None
        for job, attempt in call.answer.get("jobs") or ()
    }
    for before, event in history.pairs():
        if before is None or not event.claims or event.kind not in leases or event.expires is None:
            continue
        began = event.expires - leases[event.kind]
        taken = max(before.at, after.get((event.job, event.attempt), before.at))
        if taken - began > 0.000_01:
            yield Violation(
                "leases_are_not_short", event.job, f"the lease began {taken - began:.3f} s before it was given"
            )


def claims_take_what_they_asked_for(history: History) -> Iterator[Violation]:
    """A claim takes no more than it asked for, and its answer names what it took."""
    took: dict[str, set[tuple[str, int]]] = {}
    for event in history.events:
        if event.claims and event.claim:
            took.setdefault(event.claim, set()).add((event.job, event.attempt))
    for call in history.asked("claim"):
        claim = call.asked["claim_id"]
        taken = took.get(claim, set())
        if call.asked.get("count") is not None and len(taken) > call.asked["count"]:
            asked = call.asked["count"]
            yield Violation("claims_take_what_they_asked_for", claim, f"took {len(taken)} jobs, {asked} were asked for")
        if call.answer and call.outcome == "ok":
            for job, attempt in call.answer.get("jobs") or ():
                if (job, attempt) not in taken:
                    detail = f"the answer names attempt {attempt}, which it did not take"
                    yield Violation("claims_take_what_they_asked_for", job, detail)
