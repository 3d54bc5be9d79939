-- API servers of this release say which submissions may find only their namespace's own job by its key: submit_many_v2,
-- submit_each_v2. Nothing is stored differently.
comment on column jobs.origin is 'the namespace of the token that it was submitted with; null: the application itself';
