"""The rows of the matrix of sleeping sessions: calls, and how the things that they work on are made."""

from collections.abc import Mapping
from typing import Final

from faults.mutants import Edit, Mutant

ONE: Final = "array[%(ghost)s::uuid], array[1], array[%(claim)s::uuid]"
"""The token of the ghost's job, as functions take it."""

ROWS: Final[Mapping[str, str]] = {
    # producers
    "enqueue": "enqueue('victim', queue => %(queue)s)",
    "enqueue with a key": "enqueue('victim', idempotency_key => %(name)s)",
    "enqueue of a busy exclusive key": "enqueue('victim', exclusive_key => 'busy')",
    "enqueue of the fleet's kind and queue": "enqueue('quick')",
    "enqueue for later": "enqueue('quick', run_after => interval '1 hour')",
    "enqueue_many": "enqueue_many(jsonb_build_array(jsonb_build_object('kind', 'victim', 'idempotency_key', %(name)s::text)))",
    "enqueue_batch": "enqueue_batch('{\"kind\": \"victim\"}', '[{}, {}]', array[%(id)s::uuid, %(id2)s::uuid])",
    "submit": "submit('victim', idempotency_key => %(name)s)",
    "submit_many": "submit_many(jsonb_build_array(jsonb_build_object('kind', 'victim', 'idempotency_key', %(name)s::text)))",
    "submit_each": "submit_each(jsonb_build_array(jsonb_build_object('kind', 'victim', 'idempotency_key', %(name)s::text)))",
    "accept": "accept(%(created)s::uuid)",
    "accept_many": "accept_many(array[%(created)s::uuid])",
    "accept_each": "accept_each(array[%(created)s::uuid])",
    "notify": "notify(array['default'])",
    "status": "status(%(fleet)s::uuid)",
    "statuses": "statuses(array[%(fleet)s::uuid])",
    "lease_seconds": "lease_seconds('quick')",
    # workers
    "claim": "claim(%(owner)s, queues => array[%(queue)s], count => 1, claim_id => %(id)s::uuid) from (select %(queued)s) t",
    "claim of nothing": "claim(%(owner)s, kinds => array['victim'], queues => array['none'], count => 10, claim_id => %(id)s::uuid)",
    "claim in all lanes": "claim(%(owner)s, kinds => array['victim'], count => 1, claim_id => %(id)s::uuid) from (select %(queued)s) t",
    "claim under a limit of a queue": "claim(%(owner)s, kinds => array['victim'], queues => array['limited'], count => 1,"
    " claim_id => %(id)s::uuid) from (select %(limited)s) t",
    "claim under a limit of a key": "claim(%(owner)s, kinds => array['victim'], queues => array[%(queue)s], count => 1,"
    " claim_id => %(id)s::uuid) from (select %(keyed)s) t",
    "claim by the fleet's worker": "claim(%(worker)s, kinds => array['victim'], count => 1, claim_id => %(id)s::uuid)",
    "claim_each": "claim_each(%(owner)s, queues => array[%(queue)s], count => 1, claim_id => %(id)s::uuid) from (select %(queued)s) t",
    "claim_each under a limit of a queue": "claim_each(%(owner)s, kinds => array['victim'], queues => array['limited'], count => 1,"
    " claim_id => %(id)s::uuid) from (select %(limited)s) t",
    "claim_job": "claim_job(%(queued)s::uuid, %(owner)s, %(id)s::uuid)",
    "heartbeat": f"heartbeat(%(owner)s, {ONE})",
    "heartbeat by the fleet's worker": "heartbeat(%(worker)s, '{}'::uuid[], '{}'::integer[])",
    "heartbeat of the fleet's job": "heartbeat(%(worker)s, array[%(fleet)s::uuid], array[1])",
    "renew": f"renew(%(owner)s, {ONE})",
    "renew of the fleet's job": "renew(%(worker)s, array[%(fleet)s::uuid], array[1])",
    "renew_each": f"renew_each(%(owner)s, {ONE})",
    "owned": "owned(%(worker)s)",
    "complete": "complete(%(owner)s, array[%(ghost)s::uuid], array[1])",
    "complete of the fleet's job": "complete(%(worker)s, array[%(fleet)s::uuid], array[1])",
    "complete_in": "complete_in(%(owner)s, %(ghost)s::uuid, 1, %(claim)s::uuid)",
    "complete_in of the fleet's job": "complete_in(%(worker)s, %(fleet)s::uuid, 1, %(fleet_claim)s::uuid)",
    "report_each": f'report_each(%(owner)s, {ONE}, array[\'{{"outcome": "success"}}\'])',
    "fail": "fail(%(owner)s, %(ghost)s::uuid, 1)",
    "fail_many": "fail_many(%(owner)s, jsonb_build_array(jsonb_build_object('id', %(ghost)s::text, 'attempt', 1, 'outcome', 'failed')))",
    "release": f"release(%(owner)s, {ONE})",
    "sweep": "sweep()",
    "promote": "promote()",
    "next_due": "next_due()",
    "upkeep": "upkeep(100, %(owner)s)",
    "add_logs": f'add_logs(%(owner)s, {ONE}, array[\'[[1,"INFO","text"]]\'::jsonb])',
    "start_worker": "start_worker(%(name)s, 'host', 1, null, array['victim'], array[600]::double precision[], 1)",
    "stop_worker": "stop_worker(%(owner)s)",
    "declare_kinds": "declare_kinds(array['victim'], array[600]::double precision[])",
    "declare_kinds of the fleet": "declare_kinds(array['quick', 'hold'], array[%(lease)s, %(lease)s]::double precision[])",
    "declare_tasks": "declare_tasks(jsonb_build_array(jsonb_build_object('kind', %(name)s::text, 'lease_seconds', 600)))",
    "declare_tasks of the fleet": "declare_tasks(jsonb_build_array(jsonb_build_object('kind', 'quick', 'lease_seconds',"
    " %(lease)s::double precision, 'priority', 5)))",
    "schedule_due": "schedule_due()",
    "schedule_claim": "schedule_claim(%(schedule)s, %(owner)s, %(id)s::uuid)",
    "schedule_fire": "schedule_fire(%(schedule)s, %(owner)s, %(id)s::uuid, null, '{}', null, 0)",
    "schedule_problem": "schedule_problem(%(schedule)s, %(owner)s, %(id)s::uuid, 'a problem')",
    "schedule_sync": "schedule_sync('[]')",
    "statistics_add": "statistics_add(%(owner)s, 1, 0, '[]')",
    "statistics_add by the fleet's worker": "statistics_add(%(worker)s, 1000000, 0, '[]')",
    "canary_step": "canary_step()",
    # operators
    "events": "events()",
    "history": "history(true)",
    "history off": "history(false)",
    "history_enabled": "history_enabled()",
    "prune": "prune(interval '0', array['dead'], 100, false)",
    "prune dry": "prune(interval '0')",
    "prune_workers": "prune_workers(interval '1 day', 100, false)",
    "verify": "verify()",
    "doctor": "doctor()",
    "names": "names()",
    "cancel": "cancel(%(queued)s::uuid)",
    "cancel of the fleet's job": "cancel(%(fleet)s::uuid)",
    "retry": "retry(%(dead)s::uuid)",
    "counts": "counts()",
    "explain": "explain(%(queued)s::uuid)",
    "logs": "logs(%(fleet)s::uuid)",
    "set_limit": "set_limit('queue', %(queue)s, 5)",
    "set_limit of the fleet's queue": "set_limit('queue', 'limited', 50)",
    "drop_limit": "drop_limit('queue', %(limit)s)",
    "pause": "pause(%(queue)s)",
    "resume": "resume(%(paused)s)",
    "run_now": "run_now(%(later)s::uuid)",
    "retry_many": 'retry_many(\'{"kind": "victim"}\', 100, false)',
    "cancel_many": 'cancel_many(\'{"kind": "victim"}\', 100, false)',
    "list_jobs": "list_jobs('{}')",
    "job_detail": "job_detail(%(fleet)s::uuid)",
    "errors": "errors()",
    "queue_list": "queue_list()",
    "worker_list": "worker_list()",
    "stats": "stats()",
    "create_token": "create_token(%(id)s::uuid, 'x', decode(repeat('00', 32), 'hex'), array['submit'])",
    "revoke_token": "revoke_token(%(token)s::uuid)",
    "token": "token(%(token)s::uuid)",
    "token_list": "token_list()",
    "tokens_exist": "tokens_exist()",
    "schedule_put": "schedule_put(%(name)s, 'victim', every => interval '300 days')",
    "schedule_put of an old one": "schedule_put(%(schedule)s, 'victim', every => interval '301 days')",
    "schedule_enable": "schedule_enable(%(schedule)s)",
    "schedule_disable": "schedule_disable(%(schedule)s)",
    "schedule_run_now": "schedule_run_now(%(schedule)s, %(id)s::uuid)",
    "schedule_remove": "schedule_remove(%(schedule)s)",
    "schedule_list": "schedule_list()",
    "statistics": "statistics(now() - interval '1 hour', now(), 60)",
    "flow": "flow(now() - interval '1 hour', now(), 60)",
    "rates": "rates()",
    "system": "system()",
    "holders": "holders()",
    "canary_start": "canary_start('victim', null) from (select %(dead)s) t",
    "canary_stop": "canary_stop(%(id)s::uuid, 'x')",
    "canary_list": "canary_list()",
    "schema_version": "schema_version()",
    "schema_supports_from": "schema_supports_from()",
}

NOT: Final = {
    "history off": "it drops triggers: left open, it keeps the table jobs locked, which PostgreSQL lets nothing pass"
}
"""Rows that make no sense, and why."""

LIMITS: Final = {"queue": "limited", "kind": "limited", "key": "limited/"}
"""The limits that the column `limits` has jobs under, by scope."""

KEEPS: Final = {
    "claim under a limit of a queue": "queue",
    "claim_each under a limit of a queue": "queue",
    "claim under a limit of a key": "key",
    "set_limit of the fleet's queue": "queue",
}
"""Rows that keep a limit of the fleet. What they took, or how many they allow, is not committed, so nothing can be counted
under that limit (docs/guarantees.md): its jobs begin after the session has ended, those of other limits at once."""

KEEPS_WORKER: Final = {
    "claim by the fleet's worker",
    "heartbeat by the fleet's worker",
    "heartbeat of the fleet's job",
    "renew of the fleet's job",
    "statistics_add by the fleet's worker",
}
"""Rows that act in the name of a worker and keep its row: it claims nothing until they end, and the others of the fleet do. So
those that sleep at the same time keep the row of one worker at most."""

NEW: Final[dict[str, str]] = {
    "id": "select gen_random_uuid()::text",
    "id2": "select gen_random_uuid()::text",
    "queued": "select enqueue('victim', queue => %(queue)s)::text",
    "later": "select enqueue('victim', queue => %(queue)s, run_after => interval '1 hour')::text",
    "limited": "select enqueue('victim', queue => 'limited')::text",
    "keyed": "select enqueue('victim', queue => %(queue)s, exclusive_key => 'limited/victim')::text",
    "created": "select submit('victim', queue => %(queue)s)::text",
    "token": "select t.id::text from (select gen_random_uuid() as id) t,"
    " lateral (select create_token(t.id, 'x', decode(repeat('00', 32), 'hex'), array['submit'])) c",
    "schedule": "select %(name)s::text from schedule_put(%(name)s, 'victim', every => interval '300 days')",
    "limit": "select %(name)s::text from set_limit('queue', %(name)s, 5)",
    "paused": "select %(name)s::text from pause(%(name)s)",
    "worker": "select id from workers where stopped_at is null and kinds @> array['hold'] order by id limit 1",
}  # fmt: skip
"""How the things that a call works on are made."""

MUTANTS: Final[dict[str, Mutant]] = {
    "a renewal that waits for locked rows": Mutant(
        law="cancel of the fleet's job × renew",
        edits=[Edit("renew_v1", " skip locked", "")],
    ),
}
"""Seeded bugs of our SQL, under each of which a cell, its law, must fail: a matrix that cannot fail shows nothing."""
