-- Why a job is not running: every reason that holds now, the most important first; none where a worker may claim it at
-- any moment. `blocker` is the job that it waits for, if any.
-- Errors: LH002 job_unknown.

-- Whether the transaction or subtransaction of this number has not ended. The epoch is that of the nearest number.
create or replace function under_way(number xid) returns boolean language plpgsql stable as $$
declare
  near constant bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
  guess bigint := near / 4294967296 * 4294967296 + number::text::bigint;
begin
  guess := guess - case when guess - near > 2147483648 then 4294967296 else 0 end;
  return guess > 2 and coalesce(pg_xact_status(guess::text::xid8) = 'in progress', false);
exception when invalid_parameter_value then
  return false;  -- the number of a set of lockers
end $$;

create or replace function is_under(job jobs, l limits) returns boolean language sql stable
as $$ select case l.scope when 'global' then true when 'queue' then l.name = job.queue when 'kind' then l.name = job.kind
  else starts_with(job.exclusive_key, l.name) end $$;

-- A limit in words; the global one has no name.
create or replace function limit_words(l limits) returns text language sql stable
as $$ select 'the ' || l.scope || ' limit' || case when l.name <> '' then format(' %L', l.name) else '' end $$;

-- The transaction of this number, if it has been open for a second. Without settings, so that it is inlined.
create or replace function open_transaction(number xid) returns setof text language sql stable as $$
  select format('a transaction that is open%s (pid %s%s)', ' since ' || a.xact_start, a.pid, ', ' || nullif(a.application_name, ''))
  from pg_locks k join pg_stat_activity a on a.pid = k.pid and coalesce(a.xact_start < clock_timestamp() - interval '1 second', true)
  where k.locktype = 'transactionid' and k.granted and k.mode = 'ExclusiveLock' and k.transactionid = number
$$;

create or replace function explain_v1(job_id uuid)
returns table (reason text, detail text, blocker uuid, until timestamptz) language plpgsql stable set enable_seqscan = off as $$
declare
  at timestamptz := clock();
  job jobs;
  over boolean;
begin
  select * into job from jobs j where j.id = explain_v1.job_id;
  if not found then
    perform refuse('LH002', 'job_unknown', format('no job has the id %s', explain_v1.job_id));
  end if;
  if job.state in ('success', 'dead') then
    -- Not its reason_detail, which may quote its payload: viewers may call this.
    return query select case job.reason when 'set_aside' then 'set_aside' else 'finished' end,
      format('it ended as %s at %s', job.state, job.finished_at), null::uuid, null::timestamptz;
  elsif job.state = 'running' then
    over := job.lease_expires_at <= at;
    return query select case when over then 'lease_expired' else 'running' end,
      format('worker %s %s it until %s%s', job.lease_owner, case when over then 'had' else 'has' end, job.lease_expires_at,
        (select '; its row is locked by ' || min(o) || case when over then ': end that session' else '' end
         from jobs j, open_transaction(j.xmax) o where j.id = job.id)), null::uuid, job.lease_expires_at;
  else
    return query select * from why_waiting(job, at);
  end if;
end $$;

-- Every reason that holds for a job that has not started.
create or replace function why_waiting(job jobs, at timestamptz)
returns table (reason text, detail text, blocker uuid, until timestamptz) language plpgsql stable set enable_seqscan = off as $$
begin
  return query
    select 'not_accepted', 'it was submitted, and the answer was never given: repeat the submission', null::uuid, null::timestamptz
    where not job.accepted
    union all
    select 'locked', format('its row is locked by %s: end that session', o), null, null
    from jobs j, open_transaction(j.xmax) o where j.id = job.id
    union all
    select 'paused', format('the queue %L is paused since %s%s%s', p.queue, p.paused_at, ' by ' || p.paused_by, ': ' || p.reason), null, null
    from queues p where p.queue = job.queue
    union all
    select case job.state when 'retry' then 'backoff' else 'run_at' end, format('it may run from %s on', job.run_at), null, job.run_at
    where job.run_at > at
    union all
    select 'exclusive_key', format('job %s of the same exclusive key is running', h.id), h.id, h.lease_expires_at
    from jobs h where h.exclusive_key = job.exclusive_key and h.is_current and h.state is not distinct from 'running'
      and h.lease_expires_at > at
    union all
    select 'exclusive_key', format('job %s of the same exclusive key is to run first%s', n.id,
      (select '; its row is locked by ' || min(o) || ': end that session' from jobs j, open_transaction(j.xmax) o where j.id = n.id)),
      n.id, null
    from (select j.id from jobs j
          where j.exclusive_key = job.exclusive_key and j.state is not distinct from 'queued' and j.parked is distinct from true
          order by -j.priority, j.id limit 1) n
    where job.parked and not exists (select from jobs h where h.exclusive_key = job.exclusive_key and h.is_current
      and h.state is not distinct from 'running')
    union all
    select 'limit', format('%s may run under %s, and as many do',
      l.max_running || case l.max_running when 1 then ' job' else ' jobs' end, limit_words(l)), null, null
    from limits l where is_under(job, l) and running_under(l) >= l.max_running
    union all
    -- A claim or a set_limit that is left open: the xid that has the row of the limit is still under way.
    select 'limit', format('%s is in use by %s', limit_words(l), o), null, null
    from limits l, open_transaction(l.xmax) o where is_under(job, l)
    union all
    -- Locked in a subtransaction that has ended, its xid has no session in pg_locks. Every claim has the lock of bounds_in_force.
    select 'limit', format('%s is in use by a claim that is open, perhaps the one since %s (pid %s%s)', limit_words(l),
      a.xact_start, a.pid, ', ' || nullif(a.application_name, '')), null, null
    from limits l
    join pg_locks k on k.locktype = 'advisory' and k.granted and k.classid = 'limits'::regclass and k.objid = 0
      and k.objsubid = 2 and k.pid <> pg_backend_pid()
      and k.database = (select d.oid from pg_database d where d.datname = current_database())
    join pg_stat_activity a on a.pid = k.pid and coalesce(a.xact_start < clock_timestamp() - interval '1 second', true)
    where is_under(job, l) and under_way(l.xmax)
      and not exists (select from pg_locks x where x.locktype = 'transactionid' and x.granted and x.transactionid = l.xmax)
    union all
    select case when w.knowing = 0 then 'no_worker_for_kind' else 'no_worker_for_queue' end,
      case when w.knowing = 0 then format('no live worker knows the kind %L (%s are live)', job.kind, w.live)
        else format('no live worker that knows the kind %L serves the queue %L', job.kind, job.queue) end, null, null
    from workers_for(job.queue, job.kind, at) w where w.serving = 0;
end $$;

-- How many workers are live, how many of them know the kind, and how many of those serve the queue.
create or replace function workers_for(queue text, kind text, at timestamptz, out live bigint, out knowing bigint, out serving bigint)
language sql stable as $$
  select count(*), count(*) filter (where w.kinds is null or workers_for.kind = any(w.kinds)),
    count(*) filter (where (w.kinds is null or workers_for.kind = any(w.kinds)) and (w.queues is null or workers_for.queue = any(w.queues)))
  from workers w where is_live(w, workers_for.at)
$$;
