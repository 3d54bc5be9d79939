-- Workers of this release go on row by row where one row raises: claim_each, report_each, renew_each. A job that raises is
-- dead with the reason set_aside. Nothing is stored differently.
comment on column jobs.reason is 'why dead: cancelled, exhausted, fatal, lease_expired, set_aside';
