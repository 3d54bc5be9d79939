"""Metadata of a job by HTTP and by the command line: sent, bounded, shown, found."""

from typing import Any
from uuid import uuid4

import httpx
import pytest
from typer.testing import CliRunner

from leasehold.cli.app import app as cli
from leasehold.client import Client
from leasehold.errors import LeaseholdError
from tests.http.conftest import Sql, intent
from tests.http.running import Served


def test_it_is_recorded_and_jobs_are_found_by_it(http: httpx.Client, sql: Sql, home_dsn: str) -> None:
    trace = uuid4().hex
    job = http.post("/jobs", json=intent(metadata={"trace": trace, "depth": 2})).json()["jobId"]
    http.post("/jobs", json=intent(metadata={"trace": "other"}))
    found = sql.execute("select id::text, metadata from jobs where metadata ->> 'trace' = %s", [trace]).fetchall()
    assert found == [{"id": job, "metadata": {"trace": trace, "depth": 2}}]
    [listed] = http.get("/ops/jobs", params={"metadata": f"trace={trace}"}).json()["jobs"]
    assert (listed["jobId"], listed["metadata"]) == (job, {"trace": trace, "depth": 2})
    assert http.get(f"/ops/jobs/{job}").json()["metadata"]["depth"] == 2
    printed = CliRunner().invoke(cli, ["jobs", "list", "--metadata", f"trace={trace}", "--dsn", home_dsn, "--json"])
    assert job in printed.output
    assert printed.output.count(trace) == 1


@pytest.mark.parametrize("wrong", [[1], "text", {"a": "x" * 5000}, {"a": "\0"}])
def test_what_is_no_small_object_is_refused(http: httpx.Client, wrong: Any) -> None:
    answer = http.post("/jobs", json=intent(metadata=wrong))
    assert answer.status_code == 422
    assert "metadata" in answer.text


def test_a_schedule_passes_it_on_to_its_jobs(http: httpx.Client, sql: Sql) -> None:
    key = uuid4().hex
    wanted = {"jobType": "K", "everySeconds": 3600, "metadata": {"trace": key}, "enabled": False}
    assert http.put(f"/ops/schedules/{key}", json=wanted).status_code == 200
    assert http.post(f"/ops/schedules/{key}/run").status_code == 202
    found = sql.execute("select metadata from jobs where metadata ->> 'trace' = %s", [key]).fetchall()
    assert found == [{"metadata": {"trace": key}}]


def test_repeated_pairs_must_all_hold_for_lists_and_for_changes(http: httpx.Client) -> None:
    trace = uuid4().hex
    both = http.post("/jobs", json=intent(metadata={"trace": trace, "tenant": "eu"})).json()["jobId"]
    http.post("/jobs", json=intent(metadata={"trace": trace, "tenant": "us"}))
    pairs = [f"trace={trace}", "tenant=eu"]
    for order in (pairs, pairs[::-1]):
        found = http.get("/ops/jobs", params=[("metadata", pair) for pair in order]).json()["jobs"]
        assert [job["jobId"] for job in found] == [both]
    wanted = {"filter": {"metadata": pairs}, "dryRun": True}
    assert http.post("/ops/jobs/cancel", json=wanted).json()["matched"] == 1
    wanted = {"filter": {"metadata": f"trace={trace}"}, "dryRun": True}
    assert http.post("/ops/jobs/cancel", json=wanted).json()["matched"] == 2
    assert http.post("/ops/jobs/cancel", json={"filter": {"metadata": []}, "dryRun": True}).status_code == 422


@pytest.mark.parametrize("pair", ["%00=a", "a=%00", "=a", "a"])
def test_a_pair_that_no_metadata_can_have_is_refused_by_its_field(http: httpx.Client, pair: str) -> None:
    answer = http.get(f"/ops/jobs?metadata={pair}")
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == ["metadata.0"]


def test_a_filter_that_is_given_twice_is_refused_by_its_name(http: httpx.Client) -> None:
    answer = http.get("/ops/jobs?kind=A&kind=B")
    assert answer.status_code == 422
    assert answer.json()["errors"] == [{"field": "kind", "message": "given more than once; give it once"}]


def test_what_is_wrong_with_metadata_is_said_once(http: httpx.Client, served: Served) -> None:
    answer = http.post("/jobs", json=intent(metadata={"a": "x" * 5000})).json()
    assert answer["detail"].count("metadata") == 1
    with Client(served.url) as client, pytest.raises(LeaseholdError) as refused:
        client.submit("K", metadata={"a": "x" * 5000})
    assert str(refused.value).count("5,0") == 1


def test_the_client_filters_by_a_mapping(http: httpx.Client, served: Served) -> None:
    trace = uuid4().hex
    job = http.post("/jobs", json=intent(metadata={"trace": trace, "n": 2, "urgent": True})).json()["jobId"]
    http.post("/jobs", json=intent(metadata={"trace": trace, "n": 3}))
    with Client(served.url) as client:
        found = client.list_jobs(metadata={"trace": trace, "n": 2, "urgent": True}, state=["created", "queued"])
        assert [one["jobId"] for one in found.jobs] == [job]
        for wrong in ({"a=b": 1}, {"a": {}}, {"a": None}):
            with pytest.raises(TypeError, match="metadata"):
                client.list_jobs(metadata=wrong)
