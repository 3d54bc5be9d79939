-- Who may use the HTTP API. A token is an id and a secret; only the secret's hash comes here, and only an API server
-- gets it back. What a token allows is the server's to enforce; whether it is live, the database says.
-- Errors: LH003 invalid_argument, LH004 idempotency_conflict.

-- The first thing wrong with a token, in words, or null.
create or replace function token_problem(
  name text, secret_hash bytea, scopes text[], queues text[], kinds text[], rate double precision
) returns text language sql stable parallel safe
return case
    when name is null or name = '' then 'name is empty'
    when octet_length(name) > 200 then 'name is longer than 200 bytes'
    when octet_length(secret_hash) is distinct from 32 then 'secret_hash is not a SHA-256 of 32 bytes'
    when scopes is null or cardinality(scopes) = 0 then 'scopes is empty'
    when not scopes <@ array['submit', 'read', 'operate']
      then 'scopes ' || left(scopes::text, 100) || ' has others than submit, read, operate'
    when cardinality(queues) = 0 then 'queues is empty'
    when cardinality(kinds) = 0 then 'kinds is empty'
    when cardinality(queues) > 100 or cardinality(kinds) > 100 then 'more than 100 queues or kinds'
    when '' = any(queues) or array_position(queues, null) is not null then 'queues has an empty name'
    when '' = any(kinds) or array_position(kinds, null) is not null then 'kinds has an empty name'
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

create or replace function token(token_id uuid)
returns table (
  id uuid, name text, secret_hash bytea, scopes text[], queues text[], kinds text[], rate real, expires_at timestamptz,
  live boolean
) language sql stable
security definer set search_path from current
as $$ select * from token_v1(token_id) $$;

-- True: it is revoked, now or before, and stays on record. False: there is no such token.
create or replace function revoke_token_v1(id uuid) returns boolean language plpgsql
security definer set search_path from current
as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
begin
  update tokens t set revoked_at = at where t.id = revoke_token_v1.id and t.revoked_at is null;
  return found or exists (select from tokens t where t.id = revoke_token_v1.id);
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
