-- Workers of this release renew with renew(), which says of each lease whether it was renewed. Nothing is stored differently.
comment on column jobs.lease_expires_at is 'ownership ends here, whether or not a sweep has seen it';
