-- Why is this job not running? Every reason that holds at this moment, the one to look at first on top; none when any
-- worker may take it any moment. `blocker` is the job that stands in the way, where it is one.
-- Errors: LH002 job_unknown.

-- Whether the transaction or subtransaction of this number has not ended. The epoch is that of the nearest number.
create or replace function under_way(number xid) returns boolean language plpgsql stable
as $$
declare
  near constant bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
  guess bigint := near / 4294967296 * 4294967296 + number::text::bigint;
begin
  guess := guess - case when guess - near > 2147483648 then 4294967296 else 0 end;
  return guess > 2 and coalesce(pg_xact_status(guess::text::xid8) = 'in progress', false);
exception when invalid_parameter_value then
  return false;  -- the number of a set of lockers
end $$;

create or replace function explain_v1(job_id uuid)
returns table (reason text, detail text, blocker uuid, until timestamptz) language plpgsql stable
security definer set search_path from current
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
  job jobs;
  live text[];        -- the workers that were seen in the last minute
  know_kind integer;
  serve_queue integer;
begin
  select * into job from jobs j where j.id = explain_v1.job_id;
  if not found then
    perform refuse('LH002', 'job_unknown', format('no job has the id %s', explain_v1.job_id));
  end if;
  if job.reason = 'set_aside' then
    return query select 'set_aside', job.reason_detail, null::uuid, null::timestamptz;
    return;
  elsif job.state in ('success', 'dead') then
    return query select 'finished', format('it ended as %s at %s', job.state, job.finished_at), null::uuid, null::timestamptz;
    return;
  elsif job.state = 'running' then
    return query select case when job.lease_expires_at > at then 'running' else 'lease_expired' end,
      format('worker %s has it until %s', job.lease_owner, job.lease_expires_at), null::uuid, job.lease_expires_at;
    return;
  end if;
  if not job.accepted then
    return query select 'not_accepted', 'it was submitted, and the answer was never given: repeat the submission',
      null::uuid, null::timestamptz;
  end if;
  return query
    select 'paused', format('the queue %L is paused since %s%s%s', p.queue, p.paused_at, ' by ' || p.paused_by,
      ': ' || p.reason), null::uuid, null::timestamptz
    from queues p where p.queue = job.queue;
  if job.run_at > at then
    return query select case job.state when 'retry' then 'backoff' else 'run_at' end,
      format('it may run from %s on', job.run_at), null::uuid, job.run_at;
  end if;
  return query
    select 'exclusive_key', format('job %s of the same exclusive key is running', h.id), h.id, h.lease_expires_at
    from jobs h where h.exclusive_key = job.exclusive_key and h.is_current and h.state is not distinct from 'running'
      and h.lease_expires_at > at;
  return query
    select 'limit', format('%s jobs may run under the %s limit %L, and as many do', l.max_running, l.scope, l.name),
      null::uuid, null::timestamptz
    from limits l
    where case l.scope when 'global' then true when 'queue' then l.name = job.queue when 'kind' then l.name = job.kind
            else starts_with(job.exclusive_key, l.name) end
      and running_under(l) >= l.max_running;
  -- A claim or a set_limit that is left open: the xid that has the row of the limit is still under way.
  return query
    select 'limit', format('the %s limit %L is in use by a transaction that is open%s (pid %s%s)', l.scope, l.name,
      ' since ' || a.xact_start, a.pid, ', ' || nullif(a.application_name, '')), null::uuid, null::timestamptz
    from limits l
    join pg_locks k on k.locktype = 'transactionid' and k.granted and k.mode = 'ExclusiveLock' and k.transactionid = l.xmax
    join pg_stat_activity a on a.pid = k.pid and coalesce(a.xact_start < clock_timestamp() - interval '1 second', true)
    where case l.scope when 'global' then true when 'queue' then l.name = job.queue when 'kind' then l.name = job.kind
            else starts_with(job.exclusive_key, l.name) end;
  -- Locked in a subtransaction that has ended, its xid has no session in pg_locks. Every claim has the lock of holds_exist.
  return query
    select 'limit', format('the %s limit %L is in use by a claim that is open, perhaps the one since %s (pid %s%s)', l.scope,
      l.name, a.xact_start, a.pid, ', ' || nullif(a.application_name, '')), null::uuid, null::timestamptz
    from limits l
    join pg_locks k on k.locktype = 'advisory' and k.granted and k.classid = 'limits'::regclass and k.objid = 0
      and k.objsubid = 2 and k.pid <> pg_backend_pid()
      and k.database = (select d.oid from pg_database d where d.datname = current_database())
    join pg_stat_activity a on a.pid = k.pid and coalesce(a.xact_start < clock_timestamp() - interval '1 second', true)
    where case l.scope when 'global' then true when 'queue' then l.name = job.queue when 'kind' then l.name = job.kind
            else starts_with(job.exclusive_key, l.name) end
      and under_way(l.xmax)
      and not exists (select from pg_locks x where x.locktype = 'transactionid' and x.granted and x.transactionid = l.xmax);
  select array_agg(w.id), count(*) filter (where w.kinds is null or job.kind = any(w.kinds)),
         count(*) filter (where (w.kinds is null or job.kind = any(w.kinds))
           and (w.queues is null or job.queue = any(w.queues)))
  into live, know_kind, serve_queue
  from workers w where w.stopped_at is null and w.seen_at > at - interval '1 minute';
  if know_kind = 0 then
    return query select 'no_worker_for_kind', format('no live worker knows the kind %L (%s are live)', job.kind,
      coalesce(cardinality(live), 0)), null::uuid, null::timestamptz;
  elsif serve_queue = 0 then
    return query select 'no_worker_for_queue', format('no live worker that knows the kind %L serves the queue %L',
      job.kind, job.queue), null::uuid, null::timestamptz;
  end if;
end $$;

create or replace function explain(job_id uuid)
returns table (reason text, detail text, blocker uuid, until timestamptz) language sql stable
security definer set search_path from current
as $$ select * from explain_v1(job_id) $$;
