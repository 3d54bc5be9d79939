-- API servers of this release submit and accept job by job where one of them is held up: submit_each, accept_each.
comment on column jobs.idempotency_key is 'one job for each, until it is pruned';
