"""Starts claimed jobs in free slots and passes their outcomes on: it connects slots, attempts, leases and reports."""

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

from leasehold._aio import first_of
from leasehold._logger import logger_of
from leasehold._os_process import STATM, memory
from leasehold.db.store import ClaimedJob
from leasehold.outcome import Lost, Released
from leasehold.task import Task
from leasehold.telemetry import AttemptFacts, Telemetry
from leasehold.worker.attempt import Attempt, AttemptRunner
from leasehold.worker.crash_recovery import Journal, JournalFolder
from leasehold.worker.finisher import Outbox
from leasehold.worker.lease import LeaseKeeper
from leasehold.worker.log_lines import LostLeases

logger = logger_of(__name__)

# Starts a coroutine as an asyncio task. Where Python can, it runs at once up to its first wait: a short job never goes
# through the loop's queue.
if sys.version_info >= (3, 12):
    start = partial(asyncio.Task, eager_start=True)
else:
    start = asyncio.Task


class Slots:
    """The jobs that a worker has in hand: waiting ones are leased but not started, each running one occupies a slot.

    A job that was running when workers of this host died is run alone: if it kills this one too, no other job is
    charged for it.
    """

    def __init__(self, slots: int, prefetch: int, outbox: Outbox, folder: JournalFolder) -> None:
        self.size = slots
        self._capacity = slots + prefetch
        self.outbox = outbox
        self._folder = folder
        self.waiting: deque[ClaimedJob] = deque()
        self.running: dict[ClaimedJob, Attempt] = {}
        self.suspects: dict[str, bool] = folder.suspects()
        """Jobs that were running when workers died, and whether they are to be run alone. Mostly there are none."""
        self.alone: ClaimedJob | None = None
        """The job that runs alone, or waits for that; it may have ended."""
        self._memory_before = 0
        """Bytes that the process used when that job started; 0 where there is no /proc."""
        self.ended_suspects: set[ClaimedJob] = set()
        """Suspects that have ended by themselves, and whose reports are not yet answered."""
        self._held_off: asyncio.TimerHandle | None = None
        """Set while no more jobs are claimed because the system has no thread or process for them."""
        self._room = asyncio.Event()
        self.awaited = False
        """Whether the claimer waits for room."""

    @property
    def room(self) -> int:
        """How many more jobs may be claimed."""
        if self._held_off is not None or self.alone_wanted:
            return 0
        in_hand = len(self.running) + len(self.waiting)
        # The reports of one batch may be under way while the next one is claimed. Beyond that no claiming ahead of
        # reporting: while the database accepts no reports, the worker must not accumulate them.
        return min(self._capacity - in_hand, 2 * self._capacity - in_hand - self.outbox.backlog)

    async def wait_for_room(self) -> None:
        """Return when at least one more job may be claimed."""
        while self.room <= 0:
            self._room.clear()
            self.awaited = True
            await self._room.wait()

    def room_changed(self) -> None:
        """Wake the claimer if it waits and there is room: a job has left."""
        if self.awaited and self.room > 0:
            self.awaited = False
            self._room.set()

    def hold_off(self, seconds: float) -> None:
        """Claim nothing for this time."""
        if self._held_off is None:
            self._held_off = asyncio.get_running_loop().call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._held_off = None
        self.room_changed()

    def give_back(self, job: ClaimedJob) -> None:
        """Report a job as released, without an attempt."""
        self.outbox.put(job, Released())

    def kinds_on_loop(self) -> list[str]:
        """Return the kinds of the tasks that run on the event loop. May be called from any thread."""
        return [one.kind for one in list(self.running.values()) if one.task.options.executor == "loop"]

    # -- jobs that run alone. One that waits, or runs, may be lost at any time: what is so now is read from the slots.

    @property
    def alone_wanted(self) -> bool:
        """Whether a job runs alone, or waits for that: then no other is claimed."""
        return self._runs_alone() or (bool(self.suspects) and self._next_alone() is not None)

    def _runs_alone(self) -> bool:
        """Until its report is answered: what its function left in the event loop may still end this worker."""
        return self.alone in self.running or self.alone in self.ended_suspects

    def _next_alone(self) -> ClaimedJob | None:
        return next((job for job in self.waiting if self.suspects.get(job.id)), None)

    def hold_back(self) -> bool:
        """Return whether nothing may start now. If a job is to be run alone, and can be, it is put first."""
        if self._runs_alone():
            return True
        before, job = self.alone, self._next_alone()
        self.alone = job
        if job is None:
            return False
        if job is not before:
            text = "job %s (%s): attempt %d is run alone, others wait: it was running when two workers died"
            logger.warning(text, job.id, job.kind, job.attempt)
        for other in [other for other in self.waiting if not self.suspects.get(other.id)]:
            self.waiting.remove(other)
            self.give_back(other)
        if self.running:
            return True
        self.waiting.remove(job)
        self.waiting.appendleft(job)
        self._memory_before = memory()[1] if STATM.exists() else 0
        return False

    def add(self, jobs: Sequence[ClaimedJob]) -> None:
        """Add claimed jobs to those that wait. One that ran before may have become a suspect since, of any worker."""
        self.waiting.extend(jobs)
        if any(job.attempt > 1 for job in jobs):
            self.refresh_suspects()

    def refresh_suspects(self) -> None:
        """Read the list of suspects again: workers have died."""
        self.suspects = self._folder.suspects()

    def suspect_running(self) -> list[Attempt]:
        """Note what runs in this process as suspects, and return it."""
        here = [attempt for attempt in self.running.values() if attempt.task.options.executor != "process"]
        self._folder.suspect(attempt.job.id for attempt in here)
        return here

    def has_taken_most(self, job: ClaimedJob) -> bool:
        """Return whether the job runs alone and took most of the memory: else an earlier one has left that behind."""
        return job is self.alone and 2 * self._memory_before <= memory()[1]

    def clear_suspect(self, job: ClaimedJob) -> None:
        """Note that the job has ended by itself and its report is answered, and the worker lives."""
        self.ended_suspects.discard(job)
        if self.suspects.pop(job.id, None) is not None:
            self._folder.clear(job.id)


class Runner:
    """Runs the jobs of one worker. `retire` is called when it has run `max_jobs` of them."""

    def __init__(
        self, tasks: Mapping[str, Task[..., Any]], attempts: AttemptRunner, *, slots: Slots, keeper: LeaseKeeper,
        lost_leases: LostLeases, telemetry: Telemetry, max_jobs: int | None, retire: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._tasks = tasks
        self._attempts = attempts
        self._telemetry = telemetry
        self._slots = slots
        self._keeper = keeper
        self._lost_leases = lost_leases
        self._max_jobs = max_jobs
        self._retire = retire
        self._journal: Journal | None = None
        self._loop = asyncio.get_running_loop()
        self._filling = False
        self._empty = asyncio.Event()
        """Set when the last job of a worker that drains has ended."""
        self._empty.set()
        self._draining = False
        self._abandoned = False
        """Whether the journal stays as it is: the worker ends without its leases, or may be killed before it ends."""
        self.finished = 0
        """Jobs that were run to an outcome, whichever."""

    def start(self, journal: Journal | None) -> None:
        """Accept jobs from now on; the journal records which ones run."""
        self._journal = journal
        self._context = copy_context()
        """What every attempt starts from: what one job sets, the next does not see."""

    def accept(self, jobs: Sequence[ClaimedJob], asked: float) -> None:
        """Take claimed jobs in. Their leases count from the moment they were asked for."""
        self._keeper.hold(jobs, asked)
        self._slots.add(jobs)
        if len(jobs) <= 10:
            self._fill_slots()
        else:
            # The claimer first sends its next claim, and the database works on it while these jobs run.
            self._loop.call_soon(self._fill_slots)

    def _fill_slots(self) -> None:
        """Start waiting jobs. On Python 3.12 and later one may end before its start returns, and free its slot."""
        self._filling = True
        slots, journal, tasks, attempts = self._slots, self._journal, self._tasks, self._attempts
        waiting, running, size, is_live = slots.waiting, slots.running, slots.size, self._keeper.is_live
        try:
            for _ in range(500):  # in one turn of the loop, however soon they end
                if not waiting or self._draining or len(running) >= size:
                    return
                if (slots.suspects or slots.alone is not None) and slots.hold_back():
                    return
                job = waiting.popleft()
                if not is_live(job):  # this process may have been stopped: then the keeper notices it later
                    slots.give_back(job)  # counts if the database's clock is behind ours
                    continue
                attempt = running[job] = Attempt(job, tasks[job.kind], attempts)
                if journal is not None and journal.free:
                    job.journal_entry = entry = journal.free.pop()
                    journal.map[entry : entry + 36] = job.id.encode()
                handle = start(self._run(attempt), loop=self._loop, context=self._context.copy())
                if not handle.done():
                    attempt.handle = handle
            self._loop.call_soon(self._fill_slots)
        finally:
            self._filling = False

    async def _run(self, attempt: Attempt) -> None:
        """Run one attempt, report its outcome, and reuse its slot."""
        outcome = await self._attempts.run(attempt)
        slots, job = self._slots, attempt.job
        del slots.running[job]
        attempt.handle = None  # its context refers to the attempt: a cycle, which only the collector would find
        if type(outcome) is Lost:
            self._keeper.let_go([job])
            self.reported([job])  # it never will be
        else:
            if slots.suspects and job.id in slots.suspects and not attempt.released:
                slots.ended_suspects.add(job)
            slots.outbox.put(job, outcome, attempt.take_lines())
        self.finished += 1
        if self._max_jobs is not None and self.finished >= self._max_jobs:
            self._retire(f"{self.finished} jobs done")
        if slots.waiting and not self._filling:
            self._fill_slots()
        if slots.awaited:
            slots.room_changed()
        if not slots.running:
            self._empty.set()

    def reported(self, jobs: Sequence[ClaimedJob]) -> None:
        """Remove jobs from the journal: their reports are answered, and they count as ended (see `crash_recovery`)."""
        journal, slots = self._journal, self._slots
        if journal is not None and not self._abandoned:
            memory, free = journal.map, journal.free
            for job in jobs:
                entry = job.journal_entry
                if entry >= 0:
                    memory[entry] = 0
                    free.append(entry)
                    job.journal_entry = -1
        if slots.ended_suspects:
            for job in slots.ended_suspects.intersection(jobs):
                slots.clear_suspect(job)
            self._loop.call_soon(self._fill_slots)  # jobs that waited for the end of one that ran alone

    # -- endings

    def check_lease(self, job_id: str) -> None:
        """Renew this job's lease now if it runs here: a notification says that it was cancelled."""
        for job in self._slots.running:
            if job.id == job_id:
                self._keeper.soon(job)

    def lose(self, job: ClaimedJob) -> None:
        """Stop the task of a job whose lease is lost, and report nothing."""
        attempt = self._slots.running.get(job)
        if attempt is None:
            if job in self._slots.waiting:
                self._slots.waiting.remove(job)
                self._lost_leases.add(job, started=False)
            self._slots.room_changed()
            return
        self._lost_leases.add(job, started=True)
        if self._telemetry.heard:
            self._telemetry.emit("lease.lost", job=AttemptFacts.of(attempt))
        attempt.end(lost=True, cancel=attempt.task.options.executor != "thread")

    async def drain(self, grace: float, grace_begun: asyncio.Event, hurry: asyncio.Event) -> int:
        """Release waiting jobs now, running ones after the grace or in a hurry; return how many tasks do not end."""
        self._fill_slots()  # a job that was claimed for a free slot is started
        self._draining = True
        slots = self._slots
        while slots.waiting:
            slots.give_back(slots.waiting.popleft())
        if slots.running:
            self._empty.clear()
        await first_of(self._empty.wait(), hurry.wait(), grace_begun.wait())
        await first_of(self._empty.wait(), hurry.wait(), timeout=grace)
        for attempt in list(slots.running.values()):
            attempt.end(lost=False)
        if slots.running:
            await first_of(self._empty.wait(), timeout=5.0)  # for tasks to end once they are cancelled
        for job in slots.running:
            text = "job %s (%s): its task does not end; it is left behind, and its job to its lease"
            logger.error(text, job.id, job.kind)
        left_behind = len(slots.running)
        await self._attempts.close()
        return left_behind

    def suspect_running(self, why: str) -> None:
        """Note what runs as suspects, before it is released: the process uses too much memory.

        One that has taken it alone has failed. So has each where no suspect can be noted: one would do it for ever.
        """
        slots, journal = self._slots, self._journal
        here = slots.suspect_running()
        charged = [attempt for attempt in here if journal is None or slots.has_taken_most(attempt.job)]
        for attempt in charged:
            cure = f"give {attempt.kind} executor='process' with memory=…, or raise the limit"
            attempt.charge = MemoryError(f"{why}; {cure}")
        if journal is not None:
            journal.count()
            self._abandoned = True  # if the process is killed now, the last of them must not seem the only one
        text = "%s: %d jobs run, %d of them fail for it, the others are given back uncounted"
        logger.warning(text, why, len(slots.running), len(charged))

    def abandon(self, *, died: bool) -> None:
        """Stop what runs and report nothing: the worker ends without its leases."""
        self._draining = True
        self._abandoned = died  # what runs now may be why: a task that has stopped the loop, or cancelled all of it
        self._slots.waiting.clear()
        for attempt in list(self._slots.running.values()):
            attempt.end(lost=True)
        self._attempts.kill()

    def close(self, *, orderly: bool) -> None:
        """Close the journal; it stays as a file if jobs still run or the end is not orderly."""
        if self._journal is not None:
            self._journal.close(orderly=orderly and not self._abandoned and not self._slots.running)
            self._journal = None
