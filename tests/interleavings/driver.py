"""Runs two sessions in a chosen order, statement by statement, and says what came of it."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from psycopg import ClientCursor, pq, sql

from tests.interleavings.calls import Program
from tests.interleavings.starts import NOW, Start
from tests.sql.conftest import DEADLINE, INVARIANTS, Database, Session

TABLES: Final = ("jobs", "attempts", "workers", "limits", "unpark_later", "limits_to_recheck")

# What matters of the rows, and the rest. Which job of a key is parked or current may depend on the order: the laws
# judge it.
STATE: Final = """
select jsonb_build_array(
    (select jsonb_agg(to_jsonb(j) - '{parked,parked_under,is_current}'::text[] order by j.id) from jobs j),
    (select jsonb_agg(to_jsonb(a) order by a.job_id, a.attempt) from attempts a),
    (select jsonb_agg(jsonb_build_array(w.id, w.claim_id) order by w.id)
     from workers w where w.claim_id is not null))::text,
  jsonb_build_array(
    (select jsonb_agg(jsonb_build_array(j.parked, j.parked_under, j.is_current) order by j.id) from jobs j),
    (select jsonb_agg(u order by u) from unpark_later u),
    (select jsonb_agg(r order by r) from limits_to_recheck r),
    (select jsonb_agg(l order by l) from limits l))::text
"""

# Whatever happened, each job can be brought to an end.
DRAIN: Final = """
create function drain() returns uuid[] language plpgsql as $$
declare
  taken record;
begin
  for round in 1 .. 12 loop
    update hands set now = now + interval '1 hour';
    perform sweep();
    perform promote();
    select array_agg(c.id) as ids, array_agg(c.attempt) as attempts into taken from claim('drain', count => 10) c;
    exit when taken.ids is null and round > 3;
    perform complete('drain', taken.ids, taken.attempts);
  end loop;
  return array(select j.id from jobs j where j.state not in ('success', 'dead'));
end $$
"""

BROKEN: Final = " union all ".join(
    f"select {sql.Literal(law).as_string(None)} from ({query}) broken" for law, query in INVARIANTS.items()
)

SETTINGS: Final = "set gate.passed = {passed}; set gate.stop = {stop}; set gate.number = {number}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What two programs answered and left behind."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    state: str
    rest: str = field(compare=False)


@dataclass(frozen=True, slots=True)
class Turn:
    """One call of a serial run: by the first (0) or the second (1)."""

    who: int
    unseen: str | None = None
    """A job that cannot be claimed at this moment."""
    skipped: str | None = None
    """The call is left out; this is its answer."""


class Actor:
    """A session that can be left waiting inside a call."""

    def __init__(self, connection: Session, number: int) -> None:
        self.connection = connection
        self.pid = connection.info.backend_pid
        self.number = number
        self._texts = ClientCursor(connection)
        self._todo: list[bytes] = []
        self._stop = -1
        self.answers: list[str] = []

    def prepare(self, program: Program, stop: int) -> None:
        """Get ready to run the program up to a gate; 0: to its end."""
        self._todo = [self._texts.mogrify(call.sql, call.arguments).encode() for call in program]
        self.answers = []
        if (self._stop, stop) != (0, 0):
            self.connection.execute(SETTINGS.format(passed=0, stop=stop, number=self.number))
        self._stop = stop

    def start(self) -> None:
        self.connection.pgconn.send_query(self._todo.pop(0))

    def ended(self) -> bool:
        """Whether the program is over; looks without waiting, and begins the next call where there is one."""
        wire = self.connection.pgconn
        wire.consume_input()
        if wire.is_busy():
            return False
        rows: list[str] = []
        while (result := wire.get_result()) is not None:
            rows += _rows(result)
        self.answers.append(" ".join(sorted(rows)))
        if not self._todo:
            return True
        self.start()
        return False


def _rows(result: pq.abc.PGresult) -> Iterator[str]:
    if result.status == pq.ExecStatus.FATAL_ERROR:
        state = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
        yield f"error {state.decode()} {result.error_message.decode(errors='replace')[:300]}"
    for row in range(result.ntuples):
        yield repr(tuple(result.get_value(row, column) for column in range(result.nfields)))


class Driver:
    """Two sessions of a database with gates, and a third that opens them."""

    def __init__(self, database: Database) -> None:
        self.keeper = database.connect()
        self.keeper.execute(SETTINGS.format(passed=0, stop=0, number=0))
        self._first = Actor(database.connect(), 1)
        self._second = Actor(database.connect(), 2)
        self._resets = 0
        self._judged: dict[tuple[str, str], list[str]] = {}
        self.interleavings = 0
        self.allowed: Counter[str] = Counter()

    def interleave(self, start: Start, programs: Sequence[Program], stops: tuple[int, int]) -> Outcome | None:
        """The first runs to a gate, then the second to one of its own, then the first to its end, then the second.

        The one that has to wait for the other lets it go on. None: the first has no such gate.
        """
        self.reset(start, "select pg_advisory_lock(1), pg_advisory_lock(2)")
        first, second = self._first, self._second
        first.prepare(programs[0], stops[0])
        second.prepare(programs[1], stops[1])
        try:
            first.start()
            if self._run(first) == "ended":
                return None
            second.start()
            reached = self._run(second)
            if reached != "ended":
                self.keeper.execute("select pg_advisory_unlock(1)")
                self._run(first)
        finally:
            self.keeper.execute("select pg_advisory_unlock_all()")
            self._finish(first)
            self._finish(second)
        return self._outcome((self._first.answers, self._second.answers))

    def serial(self, start: Start, programs: Sequence[Program], turns: Sequence[Turn]) -> Outcome:
        """The calls one after the other, in the order of the turns."""
        self.reset(start)
        answers: tuple[list[str], list[str]] = ([], [])
        calls = [list(program) for program in programs]
        for turn in turns:
            call = calls[turn.who].pop(0)
            if turn.skipped is not None:
                answers[turn.who].append(turn.skipped)
                continue
            actor = (self._first, self._second)[turn.who]
            actor.prepare((call,), 0)
            # Not by locking its row: that would also keep the key of a job that has ended from being taken over.
            self.keeper.execute("update jobs set run_at = run_at + interval '1 day' where id = %s", [turn.unseen])
            actor.start()
            self._finish(actor)
            self.keeper.execute("update jobs set run_at = run_at - interval '1 day' where id = %s", [turn.unseen])
            answers[turn.who].extend(actor.answers)
        return self._outcome(answers)

    def broken(self, start: Start, programs: Sequence[Program], stops: tuple[int, int], outcome: Outcome) -> list[str]:
        """The laws that an outcome's state breaks. The interleaving is repeated to find out, once for each state."""
        left = (outcome.state, outcome.rest)
        if left not in self._judged:
            self.interleave(start, programs, stops)
            laws = self.keeper.values(BROKEN)
            lost = self.keeper.value("select drain()")
            self._judged[left] = laws + [f"job {job} never ends" for job in lost]
        return self._judged[left]

    def reset(self, start: Start, further: str = "") -> None:
        """Bring the database to a start."""
        if not start.statements:
            start.statements.extend(_statements(self.keeper, start))
        self._resets += 1
        clear = [f"truncate {', '.join(TABLES)}"] if self._resets % 100 == 1 else [f"delete from {t}" for t in TABLES]
        statements = [*clear, f"update hands set now = '{NOW}'", *start.statements, further]
        self.keeper.execute("; ".join(statements))

    def _run(self, actor: Actor) -> str:
        """Let an actor go on until it has ended, has come to its gate, or waits for the other one."""
        deadline = time.monotonic() + DEADLINE
        while not actor.ended():
            blockers = self.keeper.value("select pg_blocking_pids(%s)", actor.pid)
            if self.keeper.info.backend_pid in blockers:
                return "gate"
            if self._first.pid in blockers or self._second.pid in blockers:
                return "blocked"
            assert time.monotonic() < deadline, "neither ended nor waiting"
        return "ended"

    def _finish(self, actor: Actor) -> None:
        deadline = time.monotonic() + DEADLINE
        while self._busy(actor) and not actor.ended():
            assert time.monotonic() < deadline, "does not end"
            time.sleep(0.0001)

    @staticmethod
    def _busy(actor: Actor) -> bool:
        return actor.connection.pgconn.transaction_status == pq.TransactionStatus.ACTIVE

    def _outcome(self, answers: tuple[list[str], list[str]]) -> Outcome:
        state, rest = self.keeper.execute(STATE).fetchone() or ("", "")
        return Outcome(tuple(answers[0]), tuple(answers[1]), state, rest)


def orders(first: int, second: int) -> Iterator[tuple[int, ...]]:
    """All ways to merge so many calls of the first with so many of the second."""
    if first == 0 or second == 0:
        yield (0,) * first + (1,) * second
        return
    yield from ((0, *rest) for rest in orders(first - 1, second))
    yield from ((1, *rest) for rest in orders(first, second - 1))


def _statements(session: Session, start: Start) -> Iterator[str]:
    texts = ClientCursor(session)

    def insert(table: str, row: dict[str, object]) -> str:
        names, places = ", ".join(row), ", ".join(f"%({name})s" for name in row)
        return texts.mogrify(f"insert into {table} ({names}) values ({places})", row)

    for job in start.jobs:
        yield insert("jobs", job)
    for job_id, attempt, outcome in start.attempts:
        row = {"job_id": job_id, "attempt": attempt, "worker": "w", "outcome": outcome}
        yield insert("attempts", {**row, "claimed_at": NOW, "ended_at": NOW})
    for limit in start.limits:
        yield insert("limits", limit)
