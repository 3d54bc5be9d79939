"""Laws of the checker: it passes what is right, names what is wrong, and judges nothing that says too little."""

import ast
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from faults import checker
from faults.checker import RULES, check
from faults.log import Log, read
from faults.waiting import until
from tests.faults.histories import LEASE, Story, good

ROOT = Path(__file__).parents[2]


def refused(story: Story, job: str) -> int:
    """Where the log says that a job was acknowledged."""
    return next(n for n, line in enumerate(story.log) if line["op"] == "enqueue" and line.get("job") == job)


def scheduled(story: Story) -> None:
    story.note("expect", schedules={"s": "tick"})
    story.schedules.append({"row": "schedule", "key": "s", "kind": "tick", "fired": 1, "next_run_at": None})
    story.enqueue("t", kind="tick", idempotency_key="schedule:s:12:00").run("t")
    story.call("fire", {"jobs": [["12:00", "t"]]}, schedule="s", due=["12:00"])


SPOILED: dict[str, list[Callable[[Story], object]]] = {
    "acknowledged_jobs_end": [
        lambda s: s.enqueue("e"),
        lambda s: (s.enqueue("e").run("e"), s.jobs.pop("e")),
    ],
    "no_phantoms": [
        lambda s: s.enqueue("e").run("e").forget(lambda line: "key of e" in line.values() or line.get("job") == "e"),
        lambda s: s.enqueue("e").run("e").log.append(s.log.pop(refused(s, "e")) | {"phase": "fail", "job": None}),
    ],
    "one_job_a_key": [
        lambda s: s.enqueue("e", idempotency_key="key of a").run("e"),
        lambda s: s.call("enqueue", {"job": "b"}, key="key of a", kind="k"),
    ],
    "nothing_appears_or_vanishes": [
        lambda s: s.jobs.pop("a"),
        lambda s: s.jobs["a"].update(state="dead"),
        lambda s: [s.events.remove(e) for e in s.events[:] if e["job_id"] == "d"],
    ],
    "everything_ends": [
        lambda s: s.enqueue("e").claim("e"),
        lambda s: s.note("expect", ends_within=5).enqueue("e").claim("e", after=LEASE).complete("e"),
    ],
    "states_move_along_the_table": [
        lambda s: s.event("a", "queued"),
        lambda s: s.enqueue("e").event("e", "success"),
        lambda s: s.events.remove(next(e for e in s.events if e["to_state"] == "retry")),
        lambda s: s.enqueue("e").event("e", "dead", reason="cancelled").event("e", "running", attempt=1),
    ],
    "only_claims_change_the_owner": [
        lambda s: s.enqueue("e").claim("e").event("e", "running", lease_owner="v", attempt=2).complete("e", "v"),
        lambda s: s.enqueue("e").claim("e").event("e", "running", claim_id="another").complete("e"),
    ],
    "attempts_have_no_gaps": [
        lambda s: s.enqueue("e").claim("e", attempt=2).complete("e"),
        lambda s: s.enqueue("e").claim("e", attempt=0).complete("e"),
        lambda s: s.enqueue("e").claim("e").event("e", "success", attempt=2),
    ],
    "tokens_are_unique": [
        lambda s: s.enqueue("e").claim("e").release("e").claim("e", attempt=1).complete("e"),
        lambda s: s.enqueue("e").claim("e", claim_id="c").release("e").claim("e", claim_id="c").complete("e"),
    ],
    "leases_do_not_overlap": [
        lambda s: s.enqueue("e").claim("e").sweep("e", after=LEASE - 1).run("e"),
        lambda s: s.enqueue("e").claim("e").heartbeat("e").sweep("e", after=LEASE - 1).run("e"),
        lambda s: s.enqueue("e", max_attempts=1).claim("e").sweep("e", after=1),
    ],
    "expired_leases_stay_lost": [lambda s: s.enqueue("e").claim("e").heartbeat("e", after=LEASE + 1).complete("e")],
    "expired_leases_end_nothing": [
        lambda s: s.enqueue("e").claim("e").event("e", "success", after=LEASE + 1).report("complete", "e"),
        lambda s: s.enqueue("e").claim("e").event("e", "success", after=LEASE + 9),
    ],
    "renewals_are_real": [lambda s: s.enqueue("e").claim("e").report("heartbeat", "e").complete("e")],
    "leases_are_not_short": [
        lambda s: s.enqueue("e").claim("e", after=5, lease_expires_at=s.now + LEASE - 1).complete("e"),
        lambda s: (s.enqueue("e").claim("e"), s.log[-1].update(after=s.now + 1), s.complete("e")),
    ],
    "claims_take_what_they_asked_for": [
        lambda s: s.enqueue("e").enqueue("f").claim("e", claim_id="c").claim("f", claim_id="c"),
        lambda s: s.call("claim", {"jobs": [["a", 1]]}, worker="w", claim_id="that took nothing", count=1),
    ],
    "accepted_reports_are_the_owners": [
        lambda s: s.report("complete", "b"),
        lambda s: s.report("complete", "a", "v"),
        lambda s: s.report("complete", "a", accepted=False),
        lambda s: s.report("release", "b", attempt=2),
        lambda s: s.report("fail", "a"),
    ],
    "ends_were_reported": [
        lambda s: s.enqueue("e").claim("e").event("e", "success"),
        lambda s: s.enqueue("e").claim("e").event("e", "queued").record("e", "released").run("e"),
        lambda s: s.enqueue("e").claim("e").event("e", "dead", reason="cancelled").record("e", "cancelled"),
    ],
    "old_tokens_renew_nothing": [
        lambda s: s.enqueue("e").claim("e").sweep("e").claim("e").report("heartbeat", "e", attempt=1).complete("e"),
        lambda s: s.enqueue("e").run("e").report("heartbeat", "e"),
    ],
    "effects_have_their_tokens": [lambda s: s.note("effect", job="a", attempt=2, worker="w", step="begin")],
    "accepted_effects_keep_their_order": [
        lambda s: s.note("effect", job="b", attempt=2, worker="w", step="end", accepted=True, order=1).note(
            "effect", job="b", attempt=1, worker="w", step="end", accepted=True, order=2),
    ],
    "every_success_has_its_effect": [
        lambda s: s.note("expect", effects=True),
        lambda s: s.note("expect", effects=True).note("effect", job="a", attempt=1, worker="w", step="begin"),
    ],
    "failures_are_counted_once": [
        lambda s: s.enqueue("e").claim("e").event("e", "retry", retry_count=2).record("e", "failed"),
        lambda s: s.enqueue("e").claim("e").fail("e").event("e", "queued", retry_count=0).run("e"),
        lambda s: s.enqueue("e", max_attempts=1).claim("e").fail("e").event("e", "queued", reason=None),
    ],
    "the_budget_is_the_end": [
        lambda s: s.note("expect", max_attempts=2),
        lambda s: s.enqueue("e", max_attempts=2).claim("e").event("e", "dead", retry_count=1, reason="exhausted"),
        lambda s: s.enqueue("e", max_attempts=1).claim("e").event("e", "queued", retry_count=1).run("e"),
        lambda s: s.enqueue("e", max_attempts=1).claim("e").event("e", "dead", retry_count=2, reason="exhausted"),
    ],
    "every_attempt_is_on_record": [
        lambda s: s.attempts.pop(),
        lambda s: s.attempts[0].update(outcome="released"),
        lambda s: s.record("a", "failed"),
        lambda s: s.enqueue("e").claim("e").event("e", "queued").record("e", "lease_expired").run("e"),
    ],
    "nothing_runs_before_its_time": [
        lambda s: s.enqueue("e", run_at=s.now + 3).run("e"),
        lambda s: s.enqueue("e").event("e", "created", run_at=s.now + 9).event("e", "queued"),
    ],
    "limits_hold_at_all_times": [
        lambda s: s.enqueue("e").enqueue("f").enqueue("g").claim("e").claim("f").claim("g"),
        lambda s: s.note("expect", limits=[{"scope": "kind", "name": "k", "max": 0}]),
        lambda s: s.note("expect", limits=[{"scope": "queue", "name": "q", "max": 0}]),
        lambda s: s.note("expect", limits=[{"scope": "key", "name": "x", "max": 0}]),
    ],
    "one_runs_per_exclusive_key": [
        lambda s: s.enqueue("e", exclusive_key="y").enqueue("f", exclusive_key="y").claim("e").claim("f"),
    ],
    "one_fire_a_due_time": [
        lambda s: (scheduled(s), s.call("fire", {"jobs": [["12:00", "a"]]}, schedule="s", due=["12:00"])),
    ],
    "every_scheduled_job_has_its_due_time": [
        lambda s: (scheduled(s), s.schedules[0].update(fired=2)),
        lambda s: (scheduled(s), s.enqueue("u", kind="tick").run("u")),
    ],
}  # fmt: skip


def test_a_good_history_passes() -> None:
    verdict = good().judged()
    assert verdict.passed, str(verdict)
    assert verdict.exit_status == 0
    assert str(verdict).startswith("PASSED: ")


def test_a_good_history_with_a_schedule_effects_and_promises_passes() -> None:
    story = good().but(scheduled)
    story.note("expect", effects=True, ends_within=60, lost_commits=False)
    for event in story.events:
        if event["to_state"] == "success":
            token = {"job": event["job_id"], "attempt": event["attempt"], "worker": event["owner"]}
            story.note("effect", **token, step="begin").note("effect", **token, step="end", accepted=True, order=1)
    assert story.judged().passed, str(story.judged())


def test_a_lease_that_expired_makes_room_under_a_limit_though_it_was_not_swept() -> None:
    story = good().note("expect", leases={}).enqueue("e").enqueue("f").enqueue("g")
    story.claim("e").claim("f").claim("g", after=LEASE + 1).complete("g").sweep("e").sweep("f", after=1)
    for job in ("e", "f"):
        story.claim(job).complete(job)
    assert story.judged().passed, str(story.judged())


@pytest.mark.parametrize(
    ("rule", "spoil"), [(rule, spoil) for rule, ways in SPOILED.items() for spoil in ways],
    ids=[f"{rule}-{n}" for rule, ways in SPOILED.items() for n in range(len(ways))],
)  # fmt: skip
def test_what_breaks_a_law_is_named(rule: str, spoil: Callable[[Story], object]) -> None:
    verdict = good().but(spoil).judged()
    assert verdict.invalid is None
    assert rule in verdict.broken, str(verdict)
    assert verdict.exit_status == 1


def test_every_law_has_histories_that_break_it() -> None:
    assert {rule.__name__ for rule in RULES} == SPOILED.keys()


INVALID: dict[str, Callable[[Story], object]] = {
    "no program logged any call": lambda s: s.log.clear(),
    "no call was answered": lambda s: s.forget(lambda line: line["phase"] == "ok"),
    "no job was acknowledged": lambda s: s.forget(lambda line: line["op"] == "enqueue" and line["phase"] == "ok"),
    "recorded no event": lambda s: s.events.clear(),
    "ever claimed": lambda s: [s.events.remove(e) for e in s.events[:] if e["to_state"] == "running"],
}  # fmt: skip


@pytest.mark.parametrize("why", INVALID)
def test_a_history_that_says_too_little_is_invalid_and_never_a_pass(why: str) -> None:
    verdict = good().but(INVALID[why]).judged()
    assert not verdict.passed
    assert verdict.exit_status == 2
    assert why in str(verdict)


def test_an_unknown_answer_alone_acknowledges_nothing_and_loses_nothing() -> None:
    story = good()
    story.call("enqueue", {}, phase="unknown", key="never heard of again", kind="k")
    story.call("enqueue", None, key="killed while it asked", kind="k")
    assert story.judged().passed


def command(home: Path) -> "subprocess.CompletedProcess[str]":
    run = [sys.executable, "-m", "faults.checker", str(home)]
    return subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_command_says_passed_failed_or_invalid_by_its_status(tmp_path: Path) -> None:
    for status, story in enumerate((good(), good().but(SPOILED["leases_do_not_overlap"][0]))):
        story.save(tmp_path)
        done = command(tmp_path)
        assert (done.returncode, done.stderr) == (status, "")
    assert "leases_do_not_overlap" in done.stdout
    (tmp_path / "events.jsonl").unlink()
    assert command(tmp_path).returncode == 2


def test_a_torn_line_of_a_log_is_passed_over_and_one_of_a_dump_makes_it_invalid(tmp_path: Path) -> None:
    good().save(tmp_path)
    with (tmp_path / "client.jsonl").open("a") as file:
        file.write('{"at": 1, "mono": 5, "proc')
    assert check(tmp_path).passed
    whole = (tmp_path / "final.jsonl").read_text()
    (tmp_path / "final.jsonl").write_text(whole[:-20])
    assert check(tmp_path).exit_status == 2
    (tmp_path / "final.jsonl").write_text("".join(whole.splitlines(keepends=True)[:-1]))
    assert "not whole" in str(check(tmp_path))


def test_the_checker_imports_nothing_of_what_it_judges() -> None:
    for path in Path(checker.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert all(not name.startswith(("leasehold", "psycopg")) for name in names), path.name
            assert all(name.startswith("faults.checker") for name in names if name.startswith("faults")), path.name


def test_a_log_survives_the_death_of_its_process_and_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    code = "import sys; from faults.log import Log; log = Log(sys.argv[1], 'p')\nwhile True: log.note('tick')"
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], cwd=ROOT)
    try:
        until(lambda: path.exists() and path.stat().st_size > 1000)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    with path.open("a") as file:
        file.write('{"torn')
    with Log(path, "q", fsync=True) as log:
        log.ok(log.invoke("enqueue", key="k"), job="j")
    *_, asked, told = read(path)
    assert (asked["phase"], asked["key"], told["phase"], told["job"]) == ("invoke", "k", "ok", "j")
    assert asked["call"] == told["call"]
    assert asked["mono"] <= told["mono"]


def test_the_lines_of_several_threads_stay_whole_and_their_calls_distinct(tmp_path: Path) -> None:
    with Log(tmp_path / "p.jsonl", "p") as log:
        threads = [
            threading.Thread(target=lambda: [log.invoke("x", text="y" * 300) for _ in range(200)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = [json.loads(text) for text in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert len({line["call"] for line in lines}) == len(lines) == 800
    assert {line["process"] for line in lines} == {"p"}
    assert (tmp_path / "p.jsonl").stat().st_size > 800 * 300


def test_a_field_that_the_log_writes_itself_is_refused(tmp_path: Path) -> None:
    with Log(tmp_path / "p.jsonl", "p") as log, pytest.raises(ValueError, match="phase"):
        log.note("effect", phase="begin")
