"""Cases generated from the OpenAPI document, all phases, against a real server over real HTTP."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.http.raw import exchange, request
from tests.http.running import Served, serving
from tests.survival.conftest import FULL, connect, rounds

EXCLUDED = {
    "positive_data_acceptance": "JSON Schema cannot say all that is asked of a request: no NUL, lengths in bytes, a"
    " cursor that was given before, the idempotency key in the header or in the body but not two different ones",
    "use_after_free": "DELETE cancels a job; that it was there, and what became of it, stays visible on purpose",
}
"""Checks that do not apply, with the reason."""

CONFIG = """
[checks]
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 431]
"""
"""The refusals that a wrong request may get: no 5xx among them, but those of sizes and slowness."""

HOOKS = '''
import schemathesis

@schemathesis.hook
def filter_case(context, case):
    """Everything goes but revoking the token that the cases are sent with: they would all be 401 after it."""
    return (case.path_parameters or {}).get("tokenId") != "TOKEN"
'''


@pytest.fixture
def api(dsn: str) -> Iterator[Served]:
    with serving(dsn, token=True) as served, finishing(dsn):
        yield served
        assert served.process.poll() is None, "the server is down"


@contextmanager
def finishing(dsn: str) -> Iterator[None]:
    """End every job soon, as workers would: else a long poll or a stream of events would rightly last and last."""
    over = threading.Event()

    def finish() -> None:
        with connect(dsn) as sql:
            while not over.wait(0.2):
                sql.execute("select cancel(id) from jobs where state in ('created', 'queued', 'retry')")

    thread = threading.Thread(target=finish)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def run(api: Served, folder: Path, where: str, *options: str) -> tuple[dict[str, Any], str]:
    """The report of a run, and what was printed."""
    (folder / "hooks.py").write_text(HOOKS.replace("TOKEN", token_id(api)))
    (folder / "schemathesis.toml").write_text(CONFIG)
    command = [
        str(Path(sys.executable).parent / "schemathesis"), "--config-file", str(folder / "schemathesis.toml"),
        "run", where, "--header", f"Authorization: Bearer {api.token}",
        "--phases", "examples,coverage,fuzzing,stateful", "--checks", "all", "--exclude-checks", ",".join(EXCLUDED),
        "--continue-on-failure", "--no-shrink", "--no-color", "--generation-database", "none",
        "--suppress-health-check", "all", "--request-timeout", "30", "--report", "json",
        "--report-json-path", str(folder / "report.json"), *options,
    ]  # fmt: skip
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert (folder / "report.json").exists(), done.stdout + done.stderr
    return json.loads((folder / "report.json").read_text()), done.stdout


def token_id(api: Served) -> str:
    with connect(api.dsn) as sql:
        found = sql.execute("select id from tokens").fetchone()
    assert found is not None
    return str(found["id"])


@pytest.mark.timeout(1_800 if FULL else 400)
def test_no_generated_case_finds_a_server_error_or_an_undeclared_answer(api: Served, tmp_path: Path) -> None:
    # One thread: Python 3.11 cannot parse source in two at once, which its test cases do.
    options = ["--max-examples", str(rounds(6, 350)), "--workers", "1", *([] if FULL else ["--seed", "1"])]
    report, printed = run(api, tmp_path, f"{api.url}/openapi.json", *options)
    cases, operations = report["test_cases"], report["operations"]
    print(f"{cases['generated']} cases of {operations['tested']} operations, {report['running_time']:.0f} s")
    assert report["failures"] == [], printed
    assert report["errors"] == [], printed
    assert report["complete"], printed
    assert operations["tested"] == operations["total"], "nothing is left out"
    assert {phase["status"] for phase in report["phases"].values()} == {"success"}, report["phases"]
    assert cases["generated"] >= rounds(500, 10_000)


def test_the_run_sees_what_is_wrong(api: Served, tmp_path: Path) -> None:
    """The same command, and a document that promises something else: it has to complain."""
    answer = exchange(api.port, request(b"GET", b"/openapi.json", token=api.token))
    assert answer is not None
    document = answer.json()
    answers = document["paths"]["/healthz"]["get"]["responses"]
    answers["200"]["content"]["application/json"]["schema"] = {"type": "object", "required": ["health"]}
    document["paths"]["/readyz"]["get"]["responses"].pop("200")
    (tmp_path / "wrong.json").write_text(json.dumps(document))
    only = ["--include-path", "/healthz", "--include-path", "/readyz", "--max-examples", "5", "--url", api.url]
    report, printed = run(api, tmp_path, str(tmp_path / "wrong.json"), *only)
    found = {(failure["type"], *failure["operations"]) for failure in report["failures"]}
    assert ("JsonSchemaError", "GET /healthz") in found, printed
    assert ("UndefinedStatusCode", "GET /readyz") in found, printed
