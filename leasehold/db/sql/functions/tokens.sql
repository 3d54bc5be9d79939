-- Who may use the HTTP API. A token is an id and a secret; only the secret's hash comes here, and only an API server
-- gets it back. The API server enforces what a token allows; the database says whether it is live.
-- A token belongs to a namespace: jobs that it submits are its namespace's own, and a restricted token's idempotency keys
-- are kept apart by it. A token that another one makes allows nothing that the other does not, and ends with it.
-- Errors: LH003 invalid_argument, LH004 idempotency_conflict, LH009 token_too_strong.

create or replace function token_problem(t tokens) returns text language sql stable parallel safe
as $$ select case
    when t.id is null then 'id is null'
    when t.name is null or t.name = '' then 'name is empty'
    when octet_length(t.name) > max_name_bytes() then 'name is longer than ' || max_name_bytes() || ' bytes'
    when octet_length(t.secret_hash) is distinct from 32 then 'secret_hash is not a SHA-256 of 32 bytes'
    when t.scopes is null or cardinality(t.scopes) = 0 then 'scopes is empty'
    when not t.scopes <@ array['submit', 'status', 'read', 'operate']
      then 'scopes ' || left(t.scopes::text, 100) || ' has others than submit, status, read, operate'
    when cardinality(t.queues) = 0 then 'queues is empty'
    when cardinality(t.kinds) = 0 then 'kinds is empty'
    when cardinality(t.queues) > 100 or cardinality(t.kinds) > 100 then 'more than 100 queues or kinds'
    when octet_length(t.namespace) > max_name_bytes() or t.namespace = '' then 'namespace is empty or longer than ' || max_name_bytes() || ' bytes'
    when t.namespace ~ '[[:cntrl:]]' then 'namespace has a control character'
    when t.namespace is null and t.name ~ '[[:cntrl:]]' then 'name has a control character'
    when not is_readable(t.expires_at) then 'expires_at is not between 0001-01-02 and 9999-12-30'
    else coalesce(names_problem('queues', t.queues), names_problem('kinds', t.kinds))
  end $$;

-- Whether a token can be used: neither revoked nor expired.
create or replace function is_usable(t tokens, at timestamptz) returns boolean language sql immutable parallel safe
as $$ select t.revoked_at is null and (t.expires_at is null or t.expires_at > at) $$;

-- What a token would allow beyond the one that makes it, in words, or null. `status` is a part of `read`. A session is cut short instead.
create or replace function beyond_parent(parent tokens, t tokens) returns text language sql stable
as $$ select case
    when not t.scopes <@ (parent.scopes || case when 'read' = any(parent.scopes) then '{status}' else '{}' end::text[])
      then 'scopes ' || left(t.scopes::text, 100) || ' are more than ' || parent.scopes::text
    when parent.queues is not null and not coalesce(t.queues <@ parent.queues, false)
      then 'it is for queues that the token which makes it is not for'
    when parent.kinds is not null and not coalesce(t.kinds <@ parent.kinds, false)
      then 'it is for kinds that the token which makes it is not for'
    when t.rate > parent.rate then 'rate ' || t.rate::text || ' is more than ' || parent.rate::text
    when not t.session and t.expires_at > parent.expires_at
      then 'it would end at ' || t.expires_at::text || ', later than the token which makes it'
  end $$;

-- The id is made by the caller, so that the call can be repeated. Left out: namespace is the name, or of a session that
-- of its maker; rate and expires_at are those of the token that makes it (created_by), whose row is locked meanwhile: it
-- is not revoked between the check and the insert.
create or replace function create_token_v1(
  id uuid, name text, secret_hash bytea, scopes text[], queues text[] default null, kinds text[] default null,
  rate double precision default null, expires_at timestamptz default null, namespace text default null,
  created_by uuid default null, session boolean default false
) returns table (made_namespace text, made_rate real, made_expires_at timestamptz) language plpgsql set lock_timeout = '3s' as $$
declare
  at timestamptz := clock();
  parent tokens;
  t tokens := row(id, name, secret_hash, scopes, queues, kinds, null, at, expires_at, null, namespace, created_by, session);
  problem text := coalesce(token_problem(t),
    case when rate not between 0.001 and 1000000 then 'rate ' || rate || ' is not between 0.001 and 1000000' end);
begin
  perform require(problem is null, problem, 'no token was made');
  t.rate := rate;
  if t.created_by is not null then
    select * into parent from tokens p where p.id = t.created_by and is_usable(p, at) for share;
    problem := case when found then beyond_parent(parent, t) else 'the token which makes it is revoked or expired' end;
    if problem is not null then
      perform refuse('LH009', 'token_too_strong', problem, 'no token was made');
    end if;
  end if;
  t.rate := coalesce(t.rate, parent.rate);
  t.expires_at := case when t.session then least(t.expires_at, parent.expires_at) else coalesce(t.expires_at, parent.expires_at) end;
  t.namespace := case when t.session then parent.namespace else coalesce(t.namespace, t.name) end;
  -- Columns by name: a later release may add some to the table.
  insert into tokens (id, name, secret_hash, scopes, queues, kinds, rate, created_at, expires_at, namespace, created_by, session)
  values (t.id, t.name, t.secret_hash, t.scopes, t.queues, t.kinds, t.rate, t.created_at, t.expires_at, t.namespace, t.created_by,
    t.session)
  on conflict do nothing;
  if t.session then
    -- Sessions that ended long ago are of no use to operators.
    delete from tokens o where o.session and o.created_by = t.created_by
      and least(o.revoked_at, o.expires_at) < at - interval '1 day';
  end if;
  return query
    select o.namespace, o.rate, o.expires_at from tokens o
    where o.id = t.id and (o.secret_hash, o.name, o.scopes) = (t.secret_hash, t.name, t.scopes)
      and (o.queues, o.kinds) is not distinct from (t.queues, t.kinds);
  if not found then
    perform refuse('LH004', 'idempotency_conflict', format('id %s belongs to another token', t.id), 'use another id, or another key');
  end if;
end $$;

-- What an API server has to know of a token; no row: there is none. `live`: neither revoked nor expired.
create or replace function token_v1(token_id uuid) returns table (
  id uuid, name text, secret_hash bytea, scopes text[], queues text[], kinds text[], rate real, expires_at timestamptz,
  live boolean, namespace text, session boolean
) language sql stable as $$
  select t.id, t.name, t.secret_hash, t.scopes, t.queues, t.kinds, t.rate, t.expires_at, is_usable(t, clock()), t.namespace, t.session
  from tokens t where t.id = token_v1.token_id
$$;

-- True: it is revoked, now or before, and stays on record; so do the tokens that it made, and those that they made.
-- False: there is no such token. Level by level, each a statement of its own: a token that was made while its maker was
-- being revoked is seen by the next statement, for it was committed before its maker's row could be written.
create or replace function revoke_token_v1(id uuid) returns boolean language plpgsql set lock_timeout = '3s' as $$
declare
  level uuid[] := array[revoke_token_v1.id];
begin
  while cardinality(level) > 0 loop
    update tokens t set revoked_at = coalesce(t.revoked_at, clock()) where t.id = any(level);
    level := array(select t.id from tokens t where t.created_by = any(level));
  end loop;
  return exists (select from tokens t where t.id = revoke_token_v1.id);
end $$;

-- Whether any token is live: without one the API cannot be used.
create or replace function tokens_exist_v1() returns boolean language sql stable
as $$ select exists (select from tokens t where is_usable(t, clock())) $$;

-- Everything but the hash. The clock is PostgreSQL's own, as in limit_overview.
create or replace view token_overview as
select id, name, scopes, queues, kinds, rate, created_at, expires_at, revoked_at,
  revoked_at is null and (expires_at is null or expires_at > clock_timestamp()) as live
from tokens;

-- The same a page at a time, the latest first. `after` is the id of the last token of the page before. Sessions of browsers are left
-- out unless they are wanted.
create or replace function token_list_v1(after uuid default null, count integer default 100, sessions boolean default false)
returns table (
  id uuid, name text, scopes text[], queues text[], kinds text[], rate real, created_at timestamptz,
  expires_at timestamptz, revoked_at timestamptz, live boolean, namespace text, created_by uuid, session boolean
) language plpgsql stable as $$
begin
  perform require(count between 1 and 1000, format('count %s', count), 'ask for 1 to 1000 tokens');
  return query
    select t.id, t.name, t.scopes, t.queues, t.kinds, t.rate, t.created_at, t.expires_at, t.revoked_at,
      is_usable(t, clock()), t.namespace, t.created_by, t.session
    from tokens t
    where (token_list_v1.after is null
        or (t.created_at, t.id) < (select l.created_at, l.id from tokens l where l.id = token_list_v1.after))
      and (sessions or not t.session)
    order by t.created_at desc, t.id desc limit count;
end $$;
