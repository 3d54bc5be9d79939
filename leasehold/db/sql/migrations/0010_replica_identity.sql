-- Every table has a primary key: a publication FOR ALL TABLES refuses to delete from a table without one. A number, not
-- the exclusive key: two that note the same key must not wait for each other.
alter table unpark_later add column seq bigint generated always as identity primary key;

-- Jobs that wait for a time outside the calendar, which are refused from now on: no program could read them.
update jobs set run_at = case when run_at < '0001-01-02 00:00:00+00' then created_at else '9999-12-29 00:00:00+00' end
where state in ('created', 'retry') and accepted
  and (run_at > '9999-12-30 00:00:00+00' or run_at < '0001-01-02 00:00:00+00');
