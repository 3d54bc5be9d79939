"""A worker, commands and a migration, all as one role, whose settings a DBA has changed."""

import itertools
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Final

import psycopg

from faults.fleet import Member
from faults.matrix.table import PASSED
from faults.matrix.world import APP, LONG, World
from faults.waiting import until

COLUMNS: Final = ("start", "claim", "renew", "report", "schedule", "limits", "lists", "migrate")

LISTS: Final = (
    ["jobs", "list"], ["queues", "list"], ["workers", "list"], ["schedules", "list"], ["limits", "list"], ["stats"], ["errors"], ["verify"],
)  # fmt: skip
"""Commands that only look."""

SOON: Final = 60.0
EARLY: Final = 5.0
"""Seconds for a start that a setting may stop, when the log has named it."""

_migrating = threading.Lock()
"""Two migrations at once wait for each other: that is not what is tried here."""


class Fleetlet:
    """A worker, commands and a migration, all as one role."""

    def __init__(self, world: World, role: str, names: list[str]) -> None:
        self._world = world
        self._names = names
        self._queue = role
        self._dsn = world.server.embedded.dsn("faults").replace("//postgres@", f"//{role}@")
        self._doctor: str | None = None
        self._held = world.enqueue("hold", {"until": role}, queue=role)
        self._jobs: list[str] = []
        self._worker: Member = world.run.fleet.worker(
            role, self._dsn, "--queues", f"{role},default", app=APP, **world.env
        )
        self._numbers = itertools.count(1)
        self._stuck = ""

    def close(self) -> None:
        """End the worker; any other may take what it had."""
        world = self._world
        world.let_go(self._queue)
        if self._worker.alive:
            self._worker.kill()
        world.run.fleet.members.remove(self._worker)
        world.rows(
            "update jobs set lease_expires_at = clock() - interval '1 s' where state = 'running'"
            " and lease_owner in (select id from workers where pid = %s)",
            self._worker.pid,
        )
        world.rows("select sweep()")
        world.rows(
            "select cancel(id) from jobs where state in ('created', 'queued', 'retry') and queue = %s", self._queue
        )

    def judge(self) -> dict[str, str]:
        """Each column's reason, or none."""
        acts: dict[str, Callable[[], str]] = {
            "start": self._start, "claim": self._claim, "renew": self._renew, "report": self._report,
            "schedule": self._schedule, "limits": self._limits, "lists": self._lists, "migrate": self._migrate,
        }  # fmt: skip
        found = {}
        for column, act in acts.items():
            try:
                why = act() if column in ("start", "lists", "migrate") or not self._away() else self._away()
            except (psycopg.Error, TimeoutError, subprocess.TimeoutExpired) as error:
                why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            found[column] = why and self._unless_named(why)
        if not self._worker.alive:
            found["start"] = found["start"] or self._unless_named(f"the worker ended: {self._worker.said()[-300:]}")
        return found

    def _unless_named(self, why: str) -> str:
        """It may fail where error (or log) and doctor name the setting; one of several has to be tried alone."""
        if len(self._names) > 1:
            return why
        said = f"{why} {self._worker.said()}".lower()
        if any(name.lower() in said for name in self._names):
            if self._doctor is None:
                self._doctor = self._command(["doctor", "--listen", "0.5", "--dsn", self._dsn])[1].lower()
            if any(name.lower() in self._doctor for name in self._names):
                return PASSED
            return f"doctor does not name it: {why}"
        return why

    def _start(self) -> str:
        self._worker.start()
        world, pid = self._world, self._worker.pid
        query = "select exists (select from workers where pid = %s and kinds @> array['hold'])"
        deadline, early = time.monotonic() + SOON, time.monotonic() + EARLY
        while not world.value(query, pid):
            said = self._worker.said()
            named = time.monotonic() > early and any(name.lower() in said.lower() for name in self._names)
            if not self._worker.alive or named or time.monotonic() > deadline:
                self._stuck = f"the worker does not start ({self._worker.returncode}): {said[-300:]}"
                return self._stuck
            time.sleep(0.03)
        return PASSED

    def _away(self) -> str:
        """Why nothing can be expected of the worker."""
        return self._stuck or ("" if self._worker.alive else "the worker has ended")

    def _claim(self) -> str:
        code, text = self._command(["enqueue", "quick", "--queue", self._queue, "--anyway", "--dsn", self._dsn])
        if code:
            return f"enqueue: {text[-300:]}"
        job = text.strip().split()[-1]
        self._world.made(job, "quick")
        self._jobs = [job, *(self._world.enqueue(kind, queue=self._queue) for kind in ("quick", "chatty", "flaky"))]
        jobs = self._jobs
        until(lambda: all(row["attempt"] for row in self._world.jobs(jobs).values()), "claimed", within=SOON)
        return PASSED

    def _report(self) -> str:
        innocents = [job for job in self._jobs if self._world.jobs([job])[job]["kind"] != "flaky"]
        return self._world.ended(self._jobs, within=SOON) or self._world.charged([self._held, *innocents])

    def _renew(self) -> str:
        query = "select lease_expires_at from jobs where id = %s::uuid and state = 'running'"
        held = self._held
        until(lambda: self._world.value(query, held) is not None, "it holds a job", within=SOON)
        first = self._world.value(query, held)
        until(lambda: (self._world.value(query, held) or first) > first, "the lease is renewed", within=SOON)
        return PASSED

    def _schedule(self) -> str:
        query = "select exists (select from public.firing where by = %s)"
        until(lambda: bool(self._world.value(query, self._queue)), "it fires a schedule", within=SOON)
        return PASSED

    def _limits(self) -> str:
        for arguments in (
            ["limits", "set", "queue", self._queue, "--max", "10"],
            ["queues", "pause", f"{self._queue}-other", "--anyway"],
        ):
            code, text = self._command([*arguments, "--dsn", self._dsn])
            if code:
                return f"{' '.join(arguments[:2])}: {text[-300:]}"
        why = self._world.ended([self._world.enqueue(queue=self._queue)], within=SOON)
        for arguments in (["limits", "clear", "queue", self._queue], ["queues", "resume", f"{self._queue}-other"]):
            code, text = self._command([*arguments, "--dsn", self._dsn])
            if code:
                return f"{' '.join(arguments[:2])}: {text[-300:]}"
        return why

    def _lists(self) -> str:
        for arguments in (*LISTS, ["jobs", "show", self._held]):
            code, text = self._command([*arguments, "--dsn", self._dsn])
            if code:
                return f"{' '.join(arguments)}: {text[-300:]}"
        return PASSED

    def _migrate(self) -> str:
        changed = "update function_files set checksum = 'changed' where name in ('claim.sql', 'guard.sql', 'names.sql')"
        with _migrating:
            self._world.rows(changed)
            code, text = self._command(["migrate", "--dsn", self._dsn])
            if code:
                self._command(["migrate", "--dsn", self._world.server.dsn])
        return f"migrate: {text[-300:]}" if code else PASSED

    def _command(self, arguments: list[str]) -> tuple[int, str]:
        """How a command ended, and all that it printed."""
        member = self._world.run.fleet.command(f"{self._queue}-{next(self._numbers)}", *arguments)
        code = member.start().wait(LONG)
        return 1 if code is None else code, member.said()
