-- Limits and defaults, stated here only: leasehold._facts reads the whole numbers of this file, each name in capitals. The planner inlines a
-- stable function as a constant; an immutable one it would call in each planning.

-- Bytes of the names of queues, kinds, workers, schedules and tokens.
create or replace function max_name_bytes() returns integer language sql stable parallel safe return 200;
-- Bytes of idempotency keys, exclusive keys and tags.
create or replace function max_key_bytes() returns integer language sql stable parallel safe return 500;
create or replace function max_tags() returns integer language sql stable parallel safe return 50;
-- Priorities, positive and negative, and max_attempts: both are a smallint.
create or replace function max_number() returns integer language sql stable parallel safe return 32767;

-- A payload or result of a Python program, and the body of a POST /jobs, as the text that is sent.
create or replace function max_payload_bytes() returns integer language sql stable parallel safe return 1048576;
-- A payload or result in SQL, stored and as text. Larger, because jsonb writes spaces and exponents that the text sent did not have.
create or replace function max_json_bytes() returns integer language sql stable parallel safe return 4194304;
-- All payloads that one claim returns. One job is returned even if it is larger.
create or replace function max_claim_bytes() returns integer language sql stable parallel safe return 67108864;
-- Metadata, as text.
create or replace function max_metadata_bytes() returns integer language sql stable parallel safe return 4096;

-- How many failures end a job when neither the caller nor its kind's task says a number. With the waits of
-- backoff_seconds() between them that is a day at least.
create or replace function usual_attempts() returns integer language sql stable parallel safe return 40;

-- Seconds that a worker owns a job without a heartbeat, when its kind's task says nothing else.
create or replace function usual_lease() returns integer language sql stable parallel safe return 15;
create or replace function max_lease() returns integer language sql stable parallel safe return 86400;
-- The shortest that a task declares. A worker renews at a third of the lease, and one slow round trip must not let it expire.
create or replace function min_task_lease() returns integer language sql stable parallel safe return 1;
-- The shortest that SQL takes: callers that renew in their own way, and tests that wait for an expiry, use shorter leases.
create or replace function min_lease() returns double precision language sql stable parallel safe return 0.1;
