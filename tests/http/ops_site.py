"""A server with operators: what the tests of /ops share."""

import uuid
from typing import Any

import httpx
import psycopg
from psycopg.types.json import Jsonb

from leasehold.tokens import make_token

ERROR = {"class": "ValueError", "message": "secret message", "traceback": "secret traceback"}
UNKNOWN = "019a5f2e-7c11-7abc-8def-0123456789ab"


READS = ["/ops/jobs", "/ops/jobs/{job}", "/ops/jobs/{job}/explain", "/ops/queues", "/ops/limits", "/ops/workers",
         "/ops/errors", "/ops/stats", "/ops/statistics", "/ops/rates", "/ops/system", "/ops/canaries"]  # fmt: skip
WRITES: list[tuple[str, str, Any]] = [
    ("GET", "/ops/jobs/{job}/logs", None),
    ("GET", "/ops/tokens", None),
    ("POST", "/ops/tokens", {"name": "x", "scopes": ["operate"]}),
    ("DELETE", f"/ops/tokens/{UNKNOWN}", None),
    ("POST", "/ops/jobs/{job}/cancel", None),
    ("POST", "/ops/jobs/{job}/retry", None),
    ("POST", "/ops/jobs/{job}/run", None),
    ("POST", "/ops/jobs/retry", {"filter": {}, "dryRun": True}),
    ("POST", "/ops/jobs/cancel", {"filter": {}, "dryRun": True}),
    ("POST", "/ops/queues/mail/pause", {}),
    ("POST", "/ops/queues/mail/resume", None),
    ("PUT", "/ops/limits/global", {"maxRunning": 5}),
    ("DELETE", "/ops/limits/global", None),
    ("PUT", "/ops/limits/queue/mail", {"maxRunning": 5}),
    ("DELETE", "/ops/limits/queue/mail", None),
    ("POST", "/ops/canaries", {"jobType": "k", "errorClass": "ValueError"}),
    ("POST", f"/ops/canaries/{UNKNOWN}/stop", None),
]  # fmt: skip
ROUTES = [("GET", path, None) for path in READS] + WRITES


class Site:
    """A server, its database, and clients with tokens of all sorts."""

    def __init__(self, url: str, dsn: str) -> None:
        self.url = url
        self.sql = psycopg.connect(dsn, autocommit=True, options="-c search_path=leasehold")
        self._clients: list[httpx.Client] = []

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.sql.close()

    def one(self, query: str, *arguments: Any) -> Any:
        found = self.sql.execute(query, arguments).fetchone()
        return found and found[0]

    def client(self, *scopes: str, **restrictions: Any) -> httpx.Client:
        """With a new token; without scopes, one with all of them."""
        text = self.token(*scopes, **restrictions)
        client = httpx.Client(base_url=self.url, headers={"authorization": f"Bearer {text}"}, timeout=30)
        self._clients.append(client)
        return client

    def token(self, *scopes: str, queues: list[str] | None = None, kinds: list[str] | None = None) -> str:
        token = make_token(uuid.uuid4())
        self.sql.execute(
            "select create_token(%s, 'ann', %s, %s, %s, %s)",
            [token.id, token.hash(), list(scopes or ("submit", "read", "operate")), queues, kinds],
        )
        return token.reveal()

    def enqueue(self, kind: str = "k", **options: Any) -> str:
        names = "".join(f", {name} => %({name})s" for name in options)
        values = {name: Jsonb(value) if name == "payload" else value for name, value in options.items()}
        query = f"select enqueue(%(kind)s{names})"
        return str(self.sql.execute(query, {"kind": kind, **values}).fetchone()[0])

    def claim(self, job: str) -> None:
        assert self.one("select claim_job(%s, 'w')", job) is True

    def die(self, kind: str = "k", error: dict[str, str] = ERROR, **options: Any) -> str:
        job = self.enqueue(kind, max_attempts=1, **options)
        self.claim(job)
        self.sql.execute("select fail('w', %s, 1, error => %s)", [job, Jsonb(error)])
        return job


def ids(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [job["jobId"] for job in answer.json()["jobs"]]


def problem(answer: httpx.Response, status: int, name: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["type"].endswith(f"/problems/{name}")
    return body
