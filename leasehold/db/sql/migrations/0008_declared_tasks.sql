-- What a kind's task declares beside its lease. A job that is recorded without them gets these. Null: not declared.
alter table kinds
  add column queue        text collate "C",
  add column priority     smallint,
  add column max_attempts smallint;
