-- Who may use the HTTP API. A token is an id and a secret; only the secret's hash comes here, and only an API server
-- gets it back. What a token allows is the server's to enforce; whether it is live, the database says.
-- A token belongs to a namespace: jobs that it submits are its namespace's own, and a restricted token's idempotency keys
-- are kept apart by it. A token that another one makes allows nothing that the other does not, and ends with it.
-- Errors: LH003 invalid_argument, LH004 idempotency_conflict, LH009 token_too_strong.

-- The first thing wrong with a token, in words, or null.
create or replace function token_problem(
  name text, secret_hash bytea, scopes text[], queues text[], kinds text[], rate double precision
) returns text language sql stable parallel safe
return case
    when name is null or name = '' then 'name is empty'
    when octet_length(name) > 200 then 'name is longer than 200 bytes'
    when octet_length(secret_hash) is distinct from 32 then 'secret_hash is not a SHA-256 of 32 bytes'
    when scopes is null or cardinality(scopes) = 0 then 'scopes is empty'
    when not scopes <@ array['submit', 'status', 'read', 'operate']
      then 'scopes ' || left(scopes::text, 100) || ' has others than submit, status, read, operate'
    when cardinality(queues) = 0 then 'queues is empty'
    when cardinality(kinds) = 0 then 'kinds is empty'
    when cardinality(queues) > 100 or cardinality(kinds) > 100 then 'more than 100 queues or kinds'
    when '' = any(queues) or array_position(queues, null) is not null then 'queues has an empty name'
    when '' = any(kinds) or array_position(kinds, null) is not null then 'kinds has an empty name'
    when names_problem('queues', queues) is not null then names_problem('queues', queues)
    when names_problem('kinds', kinds) is not null then names_problem('kinds', kinds)
    when rate not between 0.001 and 1000000 then 'rate ' || rate::text || ' is not between 0.001 and 1000000'
  end;

-- The id is made by whoever creates the token, so that the call can be repeated. Null queues or kinds: all of them.
create or replace function create_token_v1(
  id uuid, name text, secret_hash bytea, scopes text[], queues text[] default null, kinds text[] default null,
  rate double precision default null, expires_at timestamptz default null
) returns void language plpgsql
security definer set search_path from current
as $$
#variable_conflict use_column
declare
  problem text := token_problem(create_token_v1.name, create_token_v1.secret_hash, create_token_v1.scopes,
    create_token_v1.queues, create_token_v1.kinds, create_token_v1.rate);
begin
  perform check_moment('expires_at', create_token_v1.expires_at);
  if problem is null and create_token_v1.id is null then
    problem := 'id is null';
  end if;
  if problem is not null then
    perform refuse('LH003', 'invalid_argument', problem, 'no token was made');
  end if;
  insert into tokens (id, name, secret_hash, scopes, queues, kinds, rate, created_at, expires_at)
  values (create_token_v1.id, create_token_v1.name, create_token_v1.secret_hash, create_token_v1.scopes,
    create_token_v1.queues, create_token_v1.kinds, create_token_v1.rate, clock(), create_token_v1.expires_at)
  on conflict do nothing;
  if not found and not exists (
    select from tokens t where t.id = create_token_v1.id and t.secret_hash = create_token_v1.secret_hash)
  then
    perform refuse('LH004', 'idempotency_conflict', format('id %s belongs to another token', create_token_v1.id),
      'use another id');
  end if;
end $$;

create or replace function create_token(
  id uuid, name text, secret_hash bytea, scopes text[], queues text[] default null, kinds text[] default null,
  rate double precision default null, expires_at timestamptz default null
) returns void language sql
security definer set search_path from current
as $$ select create_token_v1(id, name, secret_hash, scopes, queues, kinds, rate, expires_at) $$;

-- What a token would allow beyond the one that makes it, in words, or null. `status` is a part of `read`.
create or replace function beyond_parent(
  parent tokens, scopes text[], queues text[], kinds text[], rate double precision, expires_at timestamptz
) returns text language sql stable
as $$
  select case
    when not scopes <@ (parent.scopes || case when 'read' = any(parent.scopes) then '{status}' else '{}' end::text[])
      then 'scopes ' || left(scopes::text, 100) || ' are more than ' || parent.scopes::text
    when parent.queues is not null and not coalesce(queues <@ parent.queues, false)
      then 'it is for queues that the token which makes it is not for'
    when parent.kinds is not null and not coalesce(kinds <@ parent.kinds, false)
      then 'it is for kinds that the token which makes it is not for'
    when rate > parent.rate then 'rate ' || rate::text || ' is more than ' || parent.rate::text
    when expires_at > parent.expires_at
      then 'it would end at ' || expires_at::text || ', later than the token which makes it'
  end
$$;

-- The id is made by the caller, so that the call can be repeated. Left out: namespace is the name, or of a session that
-- of its maker; rate and expires_at are those of the token that makes it (created_by), whose row is locked meanwhile: it
-- is not revoked between the look and the insert.
create or replace function create_token_v2(
  id uuid, name text, secret_hash bytea, scopes text[], queues text[] default null, kinds text[] default null,
  rate double precision default null, expires_at timestamptz default null, namespace text default null,
  created_by uuid default null, session boolean default false
) returns table (made_namespace text, made_rate real, made_expires_at timestamptz) language plpgsql
security definer set search_path from current set lock_timeout = '3s'
as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
  parent tokens;
  problem text := token_problem(create_token_v2.name, create_token_v2.secret_hash, create_token_v2.scopes,
    create_token_v2.queues, create_token_v2.kinds, create_token_v2.rate);
begin
  if problem is null then
    problem := case
      when create_token_v2.id is null then 'id is null'
      when octet_length(create_token_v2.namespace) > 200 or create_token_v2.namespace = '' then 'namespace is empty or longer than 200 bytes'
      when create_token_v2.namespace ~ '[[:cntrl:]]' then 'namespace has a control character'
      when create_token_v2.namespace is null and create_token_v2.name ~ '[[:cntrl:]]' then 'name has a control character'
      when not is_readable(create_token_v2.expires_at) then 'expires_at is not between 0001-01-02 and 9999-12-30' end;
  end if;
  if problem is not null then
    perform refuse('LH003', 'invalid_argument', problem, 'no token was made');
  end if;
  if created_by is not null then
    select * into parent from tokens t
    where t.id = create_token_v2.created_by and t.revoked_at is null and (t.expires_at is null or t.expires_at > at)
    for share;
    problem := case when not found then 'the token which makes it is revoked or expired'
      else beyond_parent(parent, create_token_v2.scopes, create_token_v2.queues, create_token_v2.kinds,
        create_token_v2.rate, case when not session then create_token_v2.expires_at end) end;
    if problem is not null then
      perform refuse('LH009', 'token_too_strong', problem, 'no token was made');
    end if;
  end if;
  insert into tokens (id, name, secret_hash, scopes, queues, kinds, rate, created_at, expires_at, namespace, created_by,
    session)
  values (create_token_v2.id, create_token_v2.name, create_token_v2.secret_hash, create_token_v2.scopes,
    create_token_v2.queues, create_token_v2.kinds, coalesce(create_token_v2.rate, parent.rate), at,
    case when session then least(create_token_v2.expires_at, parent.expires_at)
      else coalesce(create_token_v2.expires_at, parent.expires_at) end,
    case when session then parent.namespace else coalesce(create_token_v2.namespace, create_token_v2.name) end,
    create_token_v2.created_by, session)
  on conflict do nothing;
  if session then
    -- Sessions that ended long ago are no record of anything.
    delete from tokens t where t.session and t.created_by = create_token_v2.created_by
      and least(t.revoked_at, t.expires_at) < at - interval '1 day';
  end if;
  return query
    select t.namespace, t.rate, t.expires_at from tokens t
    where t.id = create_token_v2.id and t.secret_hash = create_token_v2.secret_hash and t.name = create_token_v2.name
      and t.scopes = create_token_v2.scopes and t.queues is not distinct from create_token_v2.queues
      and t.kinds is not distinct from create_token_v2.kinds;
  if not found then
    perform refuse('LH004', 'idempotency_conflict', format('id %s belongs to another token', create_token_v2.id),
      'use another id, or another key');
  end if;
end $$;

-- What an API server has to know of a token; no row: there is none. `live`: neither revoked nor expired.
create or replace function token_v1(token_id uuid)
returns table (
  id uuid, name text, secret_hash bytea, scopes text[], queues text[], kinds text[], rate real, expires_at timestamptz,
  live boolean
) language plpgsql stable
security definer set search_path from current
as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
begin
  return query
    select t.id, t.name, t.secret_hash, t.scopes, t.queues, t.kinds, t.rate, t.expires_at,
      t.revoked_at is null and (t.expires_at is null or t.expires_at > at)
    from tokens t where t.id = token_v1.token_id;
end $$;

-- The same, with whose jobs it may see and cancel, and whether it is a browser's.
create or replace function token_v2(token_id uuid)
returns table (
  id uuid, name text, secret_hash bytea, scopes text[], queues text[], kinds text[], rate real, expires_at timestamptz,
  live boolean, namespace text, session boolean
) language plpgsql stable
security definer set search_path from current
as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
begin
  return query
    select t.id, t.name, t.secret_hash, t.scopes, t.queues, t.kinds, t.rate, t.expires_at,
      t.revoked_at is null and (t.expires_at is null or t.expires_at > at), t.namespace, t.session
    from tokens t where t.id = token_v2.token_id;
end $$;

create or replace function token(token_id uuid)
returns table (
  id uuid, name text, secret_hash bytea, scopes text[], queues text[], kinds text[], rate real, expires_at timestamptz,
  live boolean
) language sql stable
security definer set search_path from current
as $$ select * from token_v1(token_id) $$;

-- True: it is revoked, now or before, and stays on record; so do the tokens that it made, and those that they made.
-- False: there is no such token. Level by level, each a statement of its own: a token that was made while its maker was
-- being revoked is seen by the next statement, for it was committed before its maker's row could be written.
create or replace function revoke_token_v1(id uuid) returns boolean language plpgsql
security definer set search_path from current set lock_timeout = '3s'
as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
  level uuid[] := array[revoke_token_v1.id];
begin
  if not exists (select from tokens t where t.id = revoke_token_v1.id) then
    return false;
  end if;
  while cardinality(level) > 0 loop
    update tokens t set revoked_at = coalesce(t.revoked_at, at) where t.id = any(level);
    level := array(select t.id from tokens t where t.created_by = any(level));
  end loop;
  return true;
end $$;

create or replace function revoke_token(id uuid) returns boolean language sql
security definer set search_path from current
as $$ select revoke_token_v1(id) $$;

-- Whether any token is live: without one nobody could use the API.
create or replace function tokens_exist_v1() returns boolean language plpgsql stable
security definer set search_path from current
as $$
declare
  at timestamptz := clock();
begin
  return exists (
    select from tokens t where t.revoked_at is null and (t.expires_at is null or t.expires_at > at));
end $$;

create or replace function tokens_exist() returns boolean language sql stable
security definer set search_path from current
as $$ select tokens_exist_v1() $$;

-- For people: everything but the hash. The clock is PostgreSQL's own, as in limit_overview.
create or replace view token_overview as
select id, name, scopes, queues, kinds, rate, created_at, expires_at, revoked_at,
  revoked_at is null and (expires_at is null or expires_at > clock_timestamp()) as live
from tokens;

-- For people, a page at a time, the latest first: everything but the hash. `after` is the id of the last token of the page
-- before. Sessions of browsers are left out unless they are wanted.
create or replace function token_list_v1(after uuid default null, count integer default 100, sessions boolean default false)
returns table (
  id uuid, name text, scopes text[], queues text[], kinds text[], rate real, created_at timestamptz,
  expires_at timestamptz, revoked_at timestamptz, live boolean, namespace text, created_by uuid, session boolean
) language plpgsql stable
security definer set search_path from current
as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
begin
  if count is null or count not between 1 and 1000 then
    perform refuse('LH003', 'invalid_argument', format('count %s', count), 'ask for 1 to 1000 tokens');
  end if;
  return query
    select t.id, t.name, t.scopes, t.queues, t.kinds, t.rate, t.created_at, t.expires_at, t.revoked_at,
      t.revoked_at is null and (t.expires_at is null or t.expires_at > at), t.namespace, t.created_by, t.session
    from tokens t
    where (token_list_v1.after is null
        or (t.created_at, t.id) < (select l.created_at, l.id from tokens l where l.id = token_list_v1.after))
      and (sessions or not t.session)
    order by t.created_at desc, t.id desc limit count;
end $$;

create or replace function token_list(after uuid default null, count integer default 100, sessions boolean default false)
returns table (
  id uuid, name text, scopes text[], queues text[], kinds text[], rate real, created_at timestamptz,
  expires_at timestamptz, revoked_at timestamptz, live boolean, namespace text, created_by uuid, session boolean
) language sql stable
security definer set search_path from current
as $$ select * from token_list_v1(after, count, sessions) $$;
