-- The functions as they were before each migration that changed some: `leasehold migrate --back` restores the latest set.
create table function_sets (
  number integer generated always as identity primary key,
  release text not null,
  kept_at timestamptz not null default now(),
  files jsonb not null,
  functions jsonb not null,
  triggers jsonb not null
);
comment on table function_sets is 'Functions of earlier releases, the latest last: leasehold migrate --back.';
