"""What a job's row costs: its indexes, constraints, trigger, fillfactor, and the type of its state."""

from bench.alternatives.pair import SHIPPED, Variant, lines, measure
from bench.lines import Line
from bench.suite import Run, case

LEGAL = """(new.attempt < old.attempt or old.state <> new.state and (old.state, new.state) not in (
  ('created', 'queued'), ('queued', 'running'), ('running', 'success'), ('running', 'retry'), ('running', 'queued'),
  ('retry', 'queued'), ('created', 'dead'), ('queued', 'dead'), ('running', 'dead'), ('retry', 'dead'),
  ('dead', 'queued')))"""

CHECKS = """alter table jobs drop constraint jobs_lease_iff_running, drop constraint jobs_finished_iff_over,
    drop constraint jobs_within_budget, drop constraint jobs_exclusive"""

# Each of the others is what a claim or a finish itself goes by: without it nothing works.
INDEXES = ("jobs_lease", "jobs_finished", "jobs_due", "jobs_idempotency_key", "jobs_exclusive_waiting",
           "jobs_exclusive_runnable", "jobs_exclusive_running", "jobs_parked_under")  # fmt: skip


@case("fillfactor", alternative=True)
def fillfactor(run: Run) -> list[Line]:
    """The share of a page that inserts fill: 50 as shipped, 70, 90, 100."""
    others = [
        Variant(name=f"fillfactor {share}", change=(f"alter table jobs set (fillfactor = {share})",))
        for share in (70, 90, 100)
    ]
    return lines("fillfactor", measure(run, [SHIPPED, *others], run.size(20_000, 2_000)))


@case("indexes", alternative=True)
def indexes(run: Run) -> list[Line]:
    """The table without each of its indexes that claims and finishes do not read."""
    others = [Variant(name=f"without {name}", change=(f"drop index {name}",)) for name in INDEXES]
    none = Variant(name="without all of them", change=tuple(f"drop index {name}" for name in INDEXES))
    return lines("indexes", measure(run, [SHIPPED, *others, none], run.size(20_000, 2_000)))


@case("guards", alternative=True)
def guards(run: Run) -> list[Line]:
    """Without the transition trigger, with one BEFORE the update, without CHECKs, with a UNIQUE constraint."""
    before = f"""create trigger jobs_transition before update of state, attempt on jobs for each row
        when {LEGAL} execute function refuse_transition()"""
    unique = "alter table jobs add constraint jobs_idempotency_key unique (idempotency_key)"
    others = [
        Variant(name="without the transition trigger", change=("drop trigger jobs_transition on jobs",)),
        Variant(name="with a BEFORE trigger", change=("drop trigger jobs_transition on jobs", before)),
        Variant(name="without CHECKs", change=(CHECKS,)),
        Variant(name="with a UNIQUE constraint", change=("drop index jobs_idempotency_key", unique)),
    ]
    return lines("guards", measure(run, [SHIPPED, *others], run.size(20_000, 2_000)))


@case("history", alternative=True)
def history(run: Run) -> list[Line]:
    """With and without the history, which writes every transition to a table of its own."""
    on = Variant(name="history on", change=("select history_v1(true)",))
    return lines("history", measure(run, [SHIPPED, on], run.size(20_000, 2_000)))


# A table of the same width with nothing but what claim and finish touch, so that only the type of the state differs.
_NARROW = """create table {name} (id uuid primary key default uuidv7(), created_at timestamptz not null default now(),
  kind text collate "C" not null, payload jsonb not null, state {type} not null, attempt integer not null default 0,
  lease_owner text, lease_expires_at timestamptz, finished_at timestamptz) with (fillfactor = 50)"""
_RUNNABLE = "create index on {name} (kind, id) where state = {queued}"
_LEASE = "create index on {name} (lease_expires_at) where state = {running}"
_CLAIM = """with next as materialized (
      select id from {name} where kind = 'noop' and state = {queued} order by id limit %(n)s
    for update skip locked) update {name} j set state = {running}, attempt = attempt + 1, lease_owner = 'w',
    lease_expires_at = now() + interval '1 minute' from next where j.id = next.id
    returning j.id::text, j.attempt, j.payload::text"""
_FINISH = """update {name} set state = {success}, finished_at = now(), lease_owner = null, lease_expires_at = null
    where id = any(%(ids)s::uuid[]) and lease_owner = 'w' and state = {running}"""


@case("state-type", alternative=True)
def state_type(run: Run) -> list[Line]:
    """The state as an enum, as a smallint, as text: the same claim and finish on the same narrow table."""
    from bench.alternatives.states import compare  # noqa: PLC0415 (it needs the texts above)

    types = {
        "enum": ("job_state", "'queued'", "'running'", "'success'"),
        "smallint": ("smallint", "1", "2", "3"),
        "text": ('text collate "C"', "'queued'", "'running'", "'success'"),
    }
    texts = (_NARROW, _RUNNABLE, _LEASE, _CLAIM, _FINISH)
    return compare(run, types, texts, run.size(20_000, 2_000))
