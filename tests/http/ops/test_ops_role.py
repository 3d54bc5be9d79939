"""Law of the role leasehold_api: a server that logs in with it and nothing else can do all that it serves."""

import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from leasehold.tokens import make_token
from tests.conftest import Admin
from tests.http.ops_site import ROUTES
from tests.http.running import serving


@pytest.fixture
def role(admin: Admin) -> Iterator[str]:
    """A login that has the role, and no other."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    login = sql.Identifier(name)
    admin.connection.execute(sql.SQL("create role {} login password 'api'").format(login))
    admin.connection.execute(sql.SQL("grant leasehold_api to {}").format(login))
    yield name
    admin.connection.execute(sql.SQL("drop role {}").format(login))


def test_a_server_with_the_role_alone_serves_every_route(dsn: str, role: str) -> None:
    token = make_token(uuid.uuid4())
    with psycopg.connect(dsn, autocommit=True) as owner:
        scopes = ["submit", "read", "operate"]
        owner.execute("select leasehold.create_token(%s, 'ann', %s, %s)", [token.id, token.hash(), scopes])
    with (
        serving(make_conninfo(dsn, user=role, password="api")) as served,
        httpx.Client(base_url=served.url, headers={"authorization": f"Bearer {token.reveal()}"}, timeout=30) as client,
    ):
        job = {"jobType": "k", "idempotencyKey": "a", "payload": {}}
        made = client.post("/jobs", json=job)
        assert made.status_code == 202, made.text
        assert client.post("/jobs/batch", json={"jobs": [job]}).status_code == 202
        job_id = made.json()["jobId"]
        paths = client.get("/openapi.json").json()["paths"]
        gets = [("GET", path, None) for path, methods in paths.items() if "get" in methods and "/events" not in path]
        for method, path, body in [*gets, *ROUTES, ("DELETE", f"/jobs/{job_id}", None)]:
            answer = call(client, method, path.replace("{job}", job_id).replace("{jobId}", job_id), body)
            assert answer.status_code < 500, f"{method} {path}: {answer.text}\n{served.log.read_text()}"


def call(client: httpx.Client, method: str, path: str, body: Any) -> httpx.Response:
    return client.request(method, path.replace("{key}", "x").replace("{name}", "not-found"), json=body)
