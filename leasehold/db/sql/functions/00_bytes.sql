-- How many bytes of payload a claim gives.

-- The most that a payload can have, stored and without reading it: what is compressed is at most 255 times as long.
create or replace function most_bytes(payload jsonb) returns bigint language sql stable parallel safe
return pg_column_size(payload)::bigint * case when pg_column_compression(payload) is null then 1 else 255 end;

-- The most that a claim gives, in bytes of payload. One job is given whatever it has.
create or replace function claim_bytes() returns bigint language sql immutable parallel safe return 67108864;

-- Of locked jobs, the first in claim order that fit into so many bytes; where `first`, one at least.
create or replace function within_bytes(locked uuid[], room bigint, first boolean) returns uuid[] language plpgsql
as $$
begin
  return array(
    select t.id
    from (select f.id, sum(f.bytes) over (order by f.rank, f.id) as bytes, row_number() over (order by f.rank, f.id) as place
          from (select j.id, -j.priority as rank, pg_column_size(array[j.payload]) as bytes
                from jobs j where j.id = any(locked)) f) t
    where t.bytes <= room or first and t.place = 1);
end $$;

-- The bytes of these jobs' payloads.
create or replace function bytes_of(ids uuid[]) returns bigint language plpgsql
as $$
begin
  return (select coalesce(sum(pg_column_size(array[j.payload])), 0) from jobs j where j.id = any(ids));
end $$;
