-- Whose jobs are whose: a token's namespace, the namespace that a job was submitted in, the token that made a token.
-- Tokens and jobs from before have none of these, and go on as they were. See docs/decisions/0022-scopes-and-namespaces.md.
alter table tokens
  add column namespace  text collate "C",                   -- null: from before there were any
  add column created_by uuid,                               -- the token that made it; null: a person with a database login
  add column session    boolean not null default false;     -- a browser's, made by signing in; good for the dashboard only
alter table tokens drop constraint if exists tokens_scopes_check;
alter table tokens add constraint tokens_scopes_check
  check (cardinality(scopes) > 0 and scopes <@ '{submit,status,read,operate}');
-- Who goes with a token that is revoked.
create index tokens_made on tokens (created_by) where created_by is not null;

-- At the row's end, where it never changes: an update's WAL leaves it out.
alter table jobs add column origin text collate "C";
