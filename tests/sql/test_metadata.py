"""Metadata of a job: what belongs to the call. Recorded by every way in, bounded, found by key and value, shown."""

import json

import psycopg
import pytest
from psycopg.types.json import Jsonb

from leasehold import App, InvalidJob
from leasehold._facts import MAX_METADATA_BYTES

TRACE = {"traceparent": "00-4bf9-00f0-01", "tenant": "eu", "retries": 3}
JOB = "jsonb_build_object('kind', 'k', 'metadata', %(metadata)s::jsonb)"
WAYS = {
    "enqueue": "select enqueue('k', metadata => %(metadata)s)",
    "enqueue_many": f"select enqueue_many(jsonb_build_array({JOB}))",
    "enqueue_batch": f"select enqueue_batch({JOB}, '[{{}}]')",
    "submit": "select submit('k', metadata => %(metadata)s)",
    "submit_many": f"select id from submit_many(jsonb_build_array({JOB}), true)",
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_way_in_records_it_and_refuses_what_is_too_long_or_no_object(shared, way):
    job = shared.execute(way, {"metadata": Jsonb(TRACE)}).fetchone()[0]
    assert shared.job(job)["metadata"] == TRACE
    long = {"a": "x" * MAX_METADATA_BYTES}
    for metadata, detail in (([1], "metadata is not a JSON object"), (long, f"longer than {MAX_METADATA_BYTES} bytes")):
        with pytest.raises(psycopg.Error) as refused:
            shared.execute(way, {"metadata": Jsonb(metadata)})
        assert refused.value.sqlstate == "LH003"
        assert detail in refused.value.diag.message_detail


def test_a_number_that_is_a_megabyte_as_text_is_refused(shared):
    with pytest.raises(psycopg.Error) as refused:
        shared.execute("select enqueue('k', metadata => '{\"a\": 1e131071}')")
    assert refused.value.sqlstate == "LH003"


def test_jobs_are_found_by_a_key_and_its_value_and_show_it(shared):
    mine = shared.one("enqueue", kind="k", metadata=Jsonb(TRACE))
    shared.one("enqueue", kind="k", metadata=Jsonb({"tenant": "us"}))
    shared.one("enqueue", kind="k")
    for wanted in ("tenant=eu", "retries=3"):
        (row,) = shared.rows("list_jobs", filter=Jsonb({"metadata": wanted}))
        assert (row.id, row.metadata) == (mine, TRACE)
    assert shared.rows("list_jobs", filter=Jsonb({"metadata": "tenant=asia"})) == []
    assert shared.rows("job_detail", job_id=mine)[0].metadata == TRACE
    assert shared.execute('select * from cancel_many(\'{"metadata": "tenant=eu"}\')').fetchone()
    assert shared.job(mine)["state"] == "dead"


@pytest.mark.parametrize("wanted", ["trace", "=x", ""])
def test_a_filter_without_a_key_and_a_value_is_refused(shared, wanted):
    with pytest.raises(psycopg.Error) as refused:
        shared.rows("list_jobs", filter=Jsonb({"metadata": wanted}))
    assert refused.value.sqlstate == "LH003"
    assert "filter field metadata is" in refused.value.diag.message_detail


def test_python_records_it_and_refuses_what_the_database_would(dsn):
    app = App(dsn)
    task = app.task(kind="k")(_nothing)
    with psycopg.connect(dsn, autocommit=True, options="-c search_path=leasehold") as sql:
        one = task.using(metadata=TRACE).enqueue()
        [many] = app.enqueue_many([task.using(metadata=TRACE).intent()])
        keyed = task.using(metadata=TRACE, idempotency_key="i").enqueue()
        for job in (one, many, keyed):
            assert sql.execute("select metadata from jobs where id = %s", [job.id]).fetchone() == (TRACE,)
    for wrong in ({"a": "x" * MAX_METADATA_BYTES}, {"a": object()}, {"a": "\0"}, ["a"], json.dumps(TRACE)):
        with pytest.raises(InvalidJob, match="metadata"):
            task.using(metadata=wrong).intent()  # type: ignore[typeddict-item]
    app.close()


def _nothing() -> None:
    pass


def test_all_pairs_of_a_filter_must_hold_and_two_values_of_a_key_match_nothing(shared):
    mine = shared.one("enqueue", kind="k", metadata=Jsonb(TRACE))
    shared.one("enqueue", kind="k", metadata=Jsonb({"tenant": "eu"}))
    (row,) = shared.rows("list_jobs", filter=Jsonb({"metadata": ["tenant=eu", "retries=3"]}))
    assert row.id == mine
    assert shared.rows("list_jobs", filter=Jsonb({"metadata": ["tenant=eu", "tenant=us"]})) == []
    matched = shared.execute('select matched from cancel_many(\'{"metadata": ["tenant=eu", "retries=3"]}\')').fetchone()
    assert matched[0] == 1
    assert shared.job(mine)["state"] == "dead"


@pytest.mark.parametrize("wanted", [[], ["tenant=eu", "trace"], [1], [["a=b"]]])
def test_a_filter_of_pairs_that_are_none_is_refused(shared, wanted):
    with pytest.raises(psycopg.Error) as refused:
        shared.rows("list_jobs", filter=Jsonb({"metadata": wanted}))
    assert refused.value.sqlstate == "LH003"
