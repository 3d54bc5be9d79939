"""One server for the tests of a module, and clients of it."""

import uuid
from collections.abc import Iterator

import httpx
import psycopg
import pytest

from leasehold.tokens import make_token
from tests.conftest import Admin
from tests.http.ops_site import Site
from tests.http.running import serving


@pytest.fixture(scope="module")
def shared_site(admin: Admin, migrated: str) -> Iterator[Site]:
    with admin.database(template=migrated) as name:
        dsn = admin.server.dsn(name)
        with psycopg.connect(dsn, autocommit=True) as connection:  # from the first request on, tokens are needed
            token = make_token(uuid.uuid4())
            connection.execute("select leasehold.create_token(%s, 'first', %s, '{read}')", [token.id, token.hash()])
        with serving(dsn) as served:
            site = Site(served.url, dsn)
            try:
                yield site
                assert served.process.poll() is None, "the server is down"
                log = served.log.read_text()
                assert "secret" not in log
                assert "Traceback" not in log
            finally:
                site.close()


@pytest.fixture
def site(shared_site: Site) -> Site:
    shared_site.sql.execute("truncate jobs, attempts, workers, queues, limits, job_logs")
    return shared_site


@pytest.fixture
def operator(site: Site) -> httpx.Client:
    return site.client("operate")


@pytest.fixture
def reader(site: Site) -> httpx.Client:
    return site.client("read")
