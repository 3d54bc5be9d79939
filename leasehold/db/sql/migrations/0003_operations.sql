-- What operators and the HTTP API need: tokens, paused queues, recent errors. See docs/decisions/0014-pausing-and-operations.md.

-- Who may use the HTTP API. The secret itself is nowhere: only its SHA-256.
create table tokens (
  id          uuid primary key,
  name        text not null,
  secret_hash bytea not null check (octet_length(secret_hash) = 32),
  scopes      text[] collate "C" not null check (cardinality(scopes) > 0 and scopes <@ '{submit,read,operate}'),
  queues      text[] collate "C",                       -- null: all
  kinds       text[] collate "C",                       -- null: all
  rate        real check (rate > 0),                    -- requests a second; null: as many as come
  created_at  timestamptz not null,
  expires_at  timestamptz,
  revoked_at  timestamptz
);

-- The queues that are paused, and no others: every claim looks whether there are any.
create table queues (
  queue     text collate "C" primary key,
  paused_at timestamptz not null,
  paused_by text,
  reason    text
);

-- The latest errors first. One entry for each attempt that did not succeed, always at the index's right end.
create index attempts_ended on attempts (ended_at);

-- An API server's role: what it calls and nothing more.
do $$
begin
  if to_regrole('leasehold_api') is null then
    create role leasehold_api nologin;
  end if;
exception when duplicate_object or unique_violation then
  null;
end $$;
