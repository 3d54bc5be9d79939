"""A filter may name what a payload contains; it stays as bounded as any other."""

import json
from typing import Any

import psycopg
import pytest


@pytest.fixture
def sql(dsn: str) -> Any:
    with psycopg.connect(dsn, autocommit=True, options="-c search_path=leasehold") as connection:
        yield connection


def found(sql: Any, filter_: dict[str, Any]) -> list[Any]:
    query = "select j.payload->>'n' from list_jobs(%s) l join jobs j on j.id = l.id"
    return sorted(row[0] for row in sql.execute(query, [json.dumps(filter_)]))


@pytest.mark.parametrize("state", [None, "queued", "created", ["queued", "created"]])
def test_jobs_are_found_by_what_their_payload_contains(sql: Any, state: Any) -> None:
    later = "1 hour" if state == "created" else "0 s"
    for n in range(4):
        payload = json.dumps({"n": n, "to": {"city": "Rome" if n % 2 else "Oslo"}})
        sql.execute("select enqueue('k', %s::jsonb, run_after => %s::interval)", [payload, later])
    chosen = {} if state is None else {"state": state}
    assert found(sql, {"payload": {"to": {"city": "Rome"}}, **chosen}) == ["1", "3"]
    assert found(sql, {"payload": {}, **chosen}) == ["0", "1", "2", "3"]
    assert found(sql, {"payload": {"n": "1"}, **chosen}) == []
    many = sql.execute("select matched, changed from cancel_many(%s)", [json.dumps({"payload": {"n": 2}})]).fetchone()
    assert many == (1, 1)


def test_a_search_for_a_payload_that_no_job_has_ends(sql: Any) -> None:
    sql.execute("select enqueue('k') from generate_series(1, 300)")
    rows = sql.execute('select id from list_jobs(\'{"payload": {"x": 1}}\', scan => 100)').fetchall()
    assert rows == [(None,)]


@pytest.mark.parametrize("payload", ["[]", '"a"', "1", "null"])
def test_anything_but_an_object_is_refused(sql: Any, payload: str) -> None:
    with pytest.raises(psycopg.Error) as caught:
        sql.execute("select list_jobs(%s)", [f'{{"payload": {payload}}}'])
    assert caught.value.sqlstate == "LH003"
