"""Without tokens only this machine is served: not a page whose name leads here, not another site's form."""

import os
import subprocess
import sys

import httpx
import pytest

from tests.http.conftest import Sql, everything, intent, submitted
from tests.http.running import ROOT, Served, serving


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "169.254.1.1"])
@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/jobs"), ("GET", "/ops/jobs"), ("POST", "/ops/queues/mail/pause")]
)
def test_a_name_that_was_made_to_lead_here_is_refused(
    http: httpx.Client, sql: Sql, host: str, method: str, path: str
) -> None:
    before = everything(sql)
    answer = http.request(method, path, headers={"host": host}, json=intent() if method == "POST" else None)
    assert answer.status_code == 403
    assert "without tokens" in answer.json()["detail"]
    assert everything(sql) == before


def test_a_form_of_another_site_is_refused(http: httpx.Client, sql: Sql) -> None:
    before = everything(sql)
    answer = http.post("/jobs", headers={"sec-fetch-site": "cross-site"}, json=intent())
    assert answer.status_code == 403
    assert everything(sql) == before


@pytest.mark.parametrize(
    "headers", [{"host": "localhost:8484"}, {"host": "[::1]:80"}, {"sec-fetch-site": "same-origin"}]
)
def test_this_machine_is_served(http: httpx.Client, headers: dict[str, str]) -> None:
    assert http.post("/jobs", headers=headers, json=intent()).status_code == 202


@pytest.mark.parametrize("name", ["x-forwarded-for", "via", "forwarded", "x-real-ip", "x-forwarded-host"])
def test_what_a_proxy_passes_on_is_refused(http: httpx.Client, sql: Sql, name: str) -> None:
    before = everything(sql)
    answer = http.put("/ops/limits/global", headers={name: "203.0.113.7"}, json={"maxRunning": 0})
    assert answer.status_code == 403
    assert name in answer.json()["detail"]
    assert "leasehold tokens create" in answer.json()["detail"]
    assert everything(sql) == before


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "null"},
        {"origin": "http://["},
    ],
)
def test_a_page_of_another_port_of_this_machine_is_refused(
    http: httpx.Client, sql: Sql, headers: dict[str, str]
) -> None:
    job = submitted(http)
    before = everything(sql)
    answers = [
        http.post("/jobs", headers=headers, json=intent()),
        http.post(f"/ops/jobs/{job['jobId']}/cancel", headers=headers),
        http.delete(f"/jobs/{job['jobId']}", headers=headers),
    ]
    assert [answer.status_code for answer in answers] == [403] * 3
    assert everything(sql) == before


def test_a_page_of_this_origin_is_served(served: Served, http: httpx.Client) -> None:
    for headers in ({"origin": served.url, "sec-fetch-site": "same-origin"}, {"origin": served.url}):
        assert http.post("/jobs", headers=headers, json=intent()).status_code == 202


@pytest.mark.parametrize("host", ["[", "[::1", "]", "[]:1", "a:b:c", "%", "\x7f"])
def test_a_host_that_is_none_is_refused_without_a_defect(served: Served, http: httpx.Client, host: str) -> None:
    for method, path in (("GET", "/ops/jobs"), ("POST", "/jobs"), ("GET", "/dashboard/")):
        answer = http.request(method, path, headers={"host": host}, json=intent() if method == "POST" else None)
        assert answer.status_code in {400, 403}, answer.text
    for path in ("/dashboard/sign-in", "/dashboard/sign-out"):
        answer = http.post(path, headers={"origin": "http://[", "sec-fetch-site": "same-origin"}, json={"token": "x"})
        assert answer.status_code == 403, answer.text
    assert "Traceback" not in served.log.read_text()


def test_an_open_server_says_so_and_production_wants_tokens(served: Served, dsn: str) -> None:
    assert "no token was ever made" in served.log.read_text()
    refused = subprocess.run(
        [sys.executable, "-m", "leasehold", "serve", "--port", "0"],
        env={**os.environ, "LEASEHOLD_DSN": dsn, "LEASEHOLD_ENV": "production"},
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert refused.returncode != 0
    assert "LEASEHOLD_ENV is 'production', and no token was made" in refused.stderr
    assert "leasehold tokens create" in refused.stderr
    assert "Traceback" not in refused.stderr
    with serving(dsn, token=True, LEASEHOLD_ENV="production") as safe:
        assert "no token was ever made" not in safe.log.read_text()
        assert httpx.post(f"{safe.url}/jobs", json=intent()).status_code == 401
