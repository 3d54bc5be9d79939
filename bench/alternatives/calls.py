"""How the functions are called: by which name, as whom, and how many at once."""

import uuid

import psycopg

from bench.alternatives.pair import BATCH, CLAIM, COMPLETE, SHIPPED, WORKER, Variant, lines, measure
from bench.lines import Line
from bench.suite import Run, case

PLAIN = """do $$
declare f regprocedure;
begin
  for f in select p.oid from pg_proc p where p.pronamespace = current_schema()::regnamespace
      and p.proname in ('claim_v1', 'complete_v1') loop
    execute format('alter function %s {}', f);
  end loop;
end $$"""

# Both in one call. The jobs that are finished are those of the claim before, as a worker would have it.
MERGED = """create function finish_and_claim(worker text, ids uuid[], attempts integer[], count integer, claim_id uuid)
returns table (id uuid, attempt integer, payload jsonb) language plpgsql set search_path from current as $$
#variable_conflict use_column
begin
  if cardinality(ids) > 0 then
    perform count(*) from complete_v1(worker, ids, attempts);
  end if;
  return query select c.id, c.attempt, c.payload
    from claim_v1(worker, array['default'], array['noop'], finish_and_claim.count, finish_and_claim.claim_id) c;
end $$"""


@case("wrapper", alternative=True)
def wrapper(run: Run) -> list[Line]:
    """The stable names claim and complete in place of claim_v1 and complete_v1."""
    stable = Variant(
        name="by the stable name",
        claim=CLAIM.replace("claim_v1", "claim"),
        complete=COMPLETE.replace("complete_v1", "complete"),
    )
    return lines("wrapper", measure(run, [SHIPPED, stable], run.size(20_000, 2_000)))


@case("definer", alternative=True)
def definer(run: Run) -> list[Line]:
    """Without SECURITY DEFINER, without the pinned search_path, without the settings that keep plans."""
    changes = {
        "without SECURITY DEFINER": ("security invoker",),
        "without SET search_path": ("reset search_path",),
        "without either": ("security invoker", "reset search_path"),
        "without any SET": ("reset all",),
        "without any SET, invoker": ("security invoker", "reset all"),
    }
    others = [
        Variant(name=name, change=tuple(PLAIN.replace("{}", one) for one in some)) for name, some in changes.items()
    ]
    return lines("definer", measure(run, [SHIPPED, *others], run.size(20_000, 2_000)))


@case("merged", alternative=True)
def merged(run: Run) -> list[Line]:
    """A report that brings back the next claim: one round trip and one commit in place of two."""
    held: dict[str, tuple[list[str], list[int]]] = {}
    one_call = Variant(name="finish and claim in one call", change=(MERGED,))

    def step(connection: psycopg.Connection, variant: Variant) -> int:
        if variant is not one_call:
            jobs = connection.execute(CLAIM.encode(), [WORKER, BATCH, uuid.uuid4()], prepare=True).fetchall()
            if jobs:
                connection.execute(
                    COMPLETE.encode(), [WORKER, [j[0] for j in jobs], [j[1] for j in jobs]], prepare=True
                )
            return len(jobs)
        ids, attempts = held.get(variant.name, ([], []))
        query = "select id::text, attempt, payload::text from finish_and_claim(%s, %s::uuid[], %s::integer[], %s, %s)"
        jobs = connection.execute(query.encode(), [WORKER, ids, attempts, BATCH, uuid.uuid4()], prepare=True).fetchall()
        held[variant.name] = [job[0] for job in jobs], [job[1] for job in jobs]
        return len(ids) if ids else (-1 if jobs else 0)  # the first call finishes nothing

    return lines("merged", measure(run, [SHIPPED, one_call], run.size(20_000, 2_000), step))


@case("batch", alternative=True)
def batch(run: Run) -> list[Line]:
    """Claims and reports of 1, 10, 100 and 1,000 jobs in place of 500."""

    def step(connection: psycopg.Connection, variant: Variant) -> int:
        size = int(variant.name.split()[-1]) if variant.name.startswith("batches") else BATCH
        jobs = connection.execute(CLAIM.encode(), [WORKER, size, uuid.uuid4()], prepare=True).fetchall()
        if jobs:
            connection.execute(COMPLETE.encode(), [WORKER, [j[0] for j in jobs], [j[1] for j in jobs]], prepare=True)
        return len(jobs)

    others = [Variant(name=f"batches of {size}") for size in (1, 10, 100, 1000)]
    return lines("batch size", measure(run, [SHIPPED, *others], run.size(5_000, 1_000), step))
