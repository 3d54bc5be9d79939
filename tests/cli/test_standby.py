"""On a hot standby everything that only looks works and says where it looks; what changes something says what to do."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from faults.servers import Pair
from faults.waiting import until
from leasehold.db.database import Database
from tests.cli.conftest import Done
from tests.cli.test_serve import served

LOOKS = (
    "jobs list", "jobs show {job}", "jobs tail --for 1s", "stats", "top --once", "queues list", "workers list",
    "errors", "limits list", "schedules list", "tokens list", "migrate --plan",
)  # fmt: skip
CHANGES = ("enqueue --anyway GREET", "queues pause mail --anyway", "jobs cancel {job} --yes")
GETS = (
    "/healthz", "/readyz", "/metrics", "/jobs/{job}", "/ops/jobs", "/ops/jobs/{job}", "/ops/jobs/{job}/explain",
    "/ops/jobs/{job}/logs", "/ops/stats", "/ops/queues", "/ops/workers", "/ops/errors", "/ops/limits", "/ops/schedules",
    "/ops/system", "/ops/rates", "/ops/statistics", "/ops/tokens", "/ops/canaries",
)  # fmt: skip
PAGES = ("/", "/queues", "/jobs", "/jobs/{job}", "/errors", "/workers", "/schedules", "/system", "/data/statistics")
TAKES_NO_WRITES = "takes no writes"


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Pair, str]]:
    """A primary, a standby that follows it, and a job that both know."""
    folder = Path(tempfile.mkdtemp())  # short: the path of a socket has little room
    found = Pair(folder, synchronous=False, settings={"fsync": False})
    try:
        found.start()
        found.primary.prepare()
        found.follow()
        with found.primary.connect() as connection:
            job = str(connection.execute("select leasehold.enqueue('GREET', queue => 'mail')").fetchone()[0])
        with found.standby.connect() as connection:
            known = "select count(*) from leasehold.jobs"
            until(lambda: connection.execute(known).fetchone()[0], "the standby has the job")
        yield found, job
    finally:
        found.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def there(pair, bare, monkeypatch) -> Callable[..., Done]:
    """Run a command against the standby."""
    monkeypatch.setenv("LEASEHOLD_DSN", pair[0].standby.dsn)
    return lambda command, *more: bare(*command.format(job=pair[1]).split(), *more)


def test_doctor_reports_that_it_is_a_standby(there):
    found = {row["name"]: row for row in there("doctor --json").json}
    assert found["writable"]["verdict"] == "warn"
    assert "is a standby" in found["writable"]["detail"]
    assert found["listen"]["verdict"] == found["clock"]["verdict"] == found["due"]["verdict"] == "ok"
    assert [name for name, row in found.items() if row["verdict"] == "fail"] == ["durability"]  # without fsync


def test_verify_judges_what_the_standby_has(there):
    done = there("verify --json")
    assert done.code == 0
    assert "this server is a standby" in done.err
    assert all(law["ok"] for law in done.json)


def test_all_that_only_reads_works(there, pair):
    for command in LOOKS:
        done = there(command)
        assert done.code == 0, (command, done)
        assert command == "migrate --plan" or "this server is a standby" in done.err, command
    assert pair[1] in there("jobs list").out


def test_what_changes_something_names_the_cure(there, monkeypatch):
    monkeypatch.setitem(Database.__init__.__kwdefaults__, "wait", 0.5)  # it might be a failover
    for command in CHANGES:
        done = there(command)
        assert done.code == 3, (command, done)
        assert TAKES_NO_WRITES in done.err, (command, done)
        assert "target_session_attrs=read-write" in done.err, (command, done)


def test_a_migration_is_refused_before_it_begins(there):
    done = there("migrate")
    assert done.code == 2
    assert "this server is a standby and takes no writes; nothing was changed" in done.err


def test_the_dashboard_and_every_get_of_the_api_work(pair, tmp_path):
    standby, job = pair[0].standby, pair[1]
    with served(tmp_path, LEASEHOLD_DSN=standby.dsn, LEASEHOLD_API_DATABASE_SECONDS="2") as (_, url):
        for path in GETS:
            assert httpx.get(url + path.format(job=job), timeout=30).status_code == 200, path
        for path in PAGES:
            assert httpx.get(f"{url}/dashboard{path.format(job=job)}", timeout=30).status_code == 200, path
        assert httpx.get(f"{url}/ops/system", timeout=30).json()["standby"] is True
        assert "This database is a standby" in httpx.get(f"{url}/dashboard/", timeout=30).text

        def refusal() -> httpx.Response | None:
            answer = httpx.post(f"{url}/jobs", json={"jobType": "GREET", "idempotencyKey": "k"}, timeout=60)
            assert answer.status_code == 503, answer.text
            # A try that the deadline cut off has an unknown outcome, and is repeated with the same key.
            return answer if answer.json()["type"] != "/problems/outcome-unknown" else None

        refused = until(refusal)
        assert TAKES_NO_WRITES in refused.json()["detail"], refused.text
    assert "this server is a standby" in (tmp_path / "log").read_text()


def test_a_standby_is_none_once_it_was_promoted(pair, there):
    """The last of this file: it ends the standby."""
    with psycopg.connect(pair[0].standby.dsn, autocommit=True) as connection:
        connection.execute("select pg_promote(true, 60)")
    done = there("stats")
    assert (done.code, "standby" in done.err) == (0, False)
    assert there("enqueue --anyway GREET").code == 0
