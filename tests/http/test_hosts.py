"""Without tokens this machine is served and nobody else: not a page whose name leads here, not another site's form."""

import httpx
import pytest

from tests.http.conftest import Sql, everything, intent


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
