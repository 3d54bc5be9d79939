"""Laws of fencing: nothing that is written with an old token counts."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

from faults.checker.history import Call, Event, History, Line
from faults.checker.violation import Violation

ENDINGS: Mapping[str, Callable[[Event], bool]] = {
    "complete": lambda event: event.after == "success",
    "fail": lambda event: event.after in ("retry", "dead"),
    "release": lambda event: event.after == "queued",
}


def accepted_reports_are_the_owners(history: History) -> Iterator[Violation]:
    """What the database accepted from a worker ended that worker's own attempt; what ended it was not denied."""
    ended = {
        (event.job, event.attempt): event
        for before, event in history.pairs()
        if before is not None and event.ends and not event.swept(before)
    }
    for call in history.asked(*ENDINGS):
        job, attempt, worker = call.asked["job"], call.asked["attempt"], call.asked["worker"]
        event = ended.get((job, attempt))
        mine = event is not None and event.owner == worker and ENDINGS[call.op](event)
        if call.accepted and not mine:
            yield Violation(
                "accepted_reports_are_the_owners", job, f"{call.op} of {worker} with token {attempt} was accepted"
            )
        elif call.op == "complete" and call.outcome == "ok" and not call.accepted and mine:
            detail = f"{worker} completed attempt {attempt} and the answer was that it had lost it"
            yield Violation("accepted_reports_are_the_owners", job, detail)


def old_tokens_renew_nothing(history: History) -> Iterator[Violation]:
    """No heartbeat counts that was sent after a newer claim was answered, or after the attempt was known to be over."""
    known: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for call in history.calls:
        if call.answer is None or call.outcome != "ok":
            continue
        if call.op == "claim":
            for job, attempt in call.answer.get("jobs") or ():
                known[job].append((call.answer["mono"], attempt, f"attempt {attempt} was claimed"))
        elif call.op in ENDINGS and call.accepted:
            over = call.asked["attempt"] + 1
            known[call.asked["job"]].append((call.answer["mono"], over, f"attempt {call.asked['attempt']} was over"))
    for call in history.asked("heartbeat"):
        if call.accepted:
            yield from _renewed_after(call, known[call.asked["job"]])


def _renewed_after(call: Call, known: list[tuple[int, int, str]]) -> Iterator[Violation]:
    attempt = call.asked["attempt"]
    for mono, newer, what in known:
        if mono < call.asked["mono"] and newer > attempt:
            detail = f"{call.asked['worker']} renewed with token {attempt} after {what}"
            yield Violation("old_tokens_renew_nothing", call.asked["job"], detail)
            return


def ends_were_reported(history: History) -> Iterator[Violation]:
    """Where all workers log: an attempt ends because its own owner said so, was cancelled, or lost its lease."""
    if not history.expected.get("reports"):
        return
    said = {
        (call.op, call.asked["job"], call.asked["attempt"], call.asked["worker"])
        for call in history.asked(*ENDINGS)
        if call.outcome != "fail"
    }
    cancelled = {call.asked["job"] for call in history.asked("cancel")}
    for before, event in history.pairs():
        if before is None or not event.ends or event.swept(before):
            continue
        op = next(op for op, fits in ENDINGS.items() if fits(event))
        if event.reason == "cancelled" and event.job in cancelled:
            continue
        if (op, event.job, event.attempt, event.owner) not in said:
            detail = f"attempt {event.attempt} of {event.owner} ended {event.after}, which that one never reported"
            yield Violation("ends_were_reported", event.job, detail)


def effects_have_their_tokens(history: History) -> Iterator[Violation]:
    """Effects carry tokens that were given out."""
    if history.expected.get("lost_commits"):
        return
    given = {(event.job, event.attempt) for event in history.events if event.claims}
    for line in history.noted("effect"):
        if (line["job"], line["attempt"]) not in given:
            detail = f"effect with token {line['attempt']}, which no claim returned"
            yield Violation("effects_have_their_tokens", line["job"], detail)


def accepted_effects_keep_their_order(history: History) -> Iterator[Violation]:
    """No effect with an old token is accepted after one with a newer token."""
    accepted: dict[str, list[Line]] = defaultdict(list)
    for line in history.noted("effect"):
        if line.get("accepted") and line.get("order") is not None:
            accepted[line["job"]].append(line)
    for job, lines in accepted.items():
        for earlier, later in pairwise(sorted(lines, key=lambda line: int(line["order"]))):
            if later["attempt"] < earlier["attempt"]:
                detail = f"token {later['attempt']} was accepted after {earlier['attempt']}"
                yield Violation("accepted_effects_keep_their_order", job, detail)


def every_success_has_its_effect(history: History) -> Iterator[Violation]:
    """Where effects are logged, an attempt that succeeded had its effect."""
    if not history.expected.get("effects"):
        return
    done = {(line["job"], line["attempt"]) for line in history.noted("effect") if line.get("step") == "end"}
    for event in history.events:
        if event.ends and event.after == "success" and (event.job, event.attempt) not in done:
            detail = f"attempt {event.attempt} succeeded and has no effect"
            yield Violation("every_success_has_its_effect", event.job, detail)
