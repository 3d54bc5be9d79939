"""The functions of this release on the tables of a later one, which has added columns: after `migrate --back`."""

import json
from datetime import timedelta
from uuid import uuid4

TABLES = ("jobs", "kinds", "limits", "queues", "schedules", "statistics", "tokens", "workers")


def test_what_a_later_release_adds_to_a_table_stops_no_function_that_writes_it(db, session):
    for table in TABLES:
        session.execute(f"alter table {table} add column later integer not null default 7")
    classes = session.value("select cardinality(histogram_bounds()) + 1")
    tally = {"queue": "q", "kind": "k", "success": 1, "waits": [0] * classes, "runs": [0] * classes}
    task = {"kind": "k", "lease_seconds": 60, "queue": "q", "priority": 0, "max_attempts": 5}
    session.execute("select declare_tasks(%s::jsonb)", [json.dumps([task])])
    session.execute("select declare_kinds(array['other'], array[60])")
    session.execute("select enqueue('k')")
    session.execute("select set_limit('queue', 'q', 3)")
    session.execute("select pause('paused')")
    session.execute("select start_worker('w', 'host', 1, null, array['k'], array[60]::double precision[], 1)")
    session.execute("select statistics_add('w', 1, 0, %s::jsonb)", [json.dumps([tally])])
    for every in (60, 90):  # made, and changed
        assert session.one("schedule_put", key="s", kind="k", every=timedelta(seconds=every)) is True
    session.execute("select * from create_token(%s, 't', decode(repeat('00', 32), 'hex'), array['submit'])", [uuid4()])
    for table in TABLES:
        assert session.value(f"select count(*) from {table} where later = 7") > 0, table


def test_no_function_keeps_a_later_release_from_adding_a_column(session):
    # In PostgreSQL 15 a body after RETURN does, where it takes a row of the table; one between $$ does not.
    found = session.execute(
        "select p.oid::regprocedure::text from pg_proc p where p.pronamespace = current_schema()::regnamespace"
        " and p.prosqlbody is not null and exists (select from unnest(p.proargtypes::oid[]) t"
        " join pg_type y on y.oid = t join pg_class c on c.oid = y.typrelid where c.relkind = 'r')"
    ).fetchall()
    assert found == []
