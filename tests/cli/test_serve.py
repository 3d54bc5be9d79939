"""`leasehold serve` and `leasehold openapi`, as people run them."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from faults.waiting import until

ROOT = Path(__file__).parents[2]
BODY = {"jobType": "k", "idempotencyKey": "key"}


def ended(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "leasehold", *arguments], env={**os.environ, **env}, capture_output=True, text=True,
        timeout=60, check=False, cwd=ROOT,
    )  # fmt: skip


@contextmanager
def served(tmp_path: Path, *arguments: str, **env: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server, and where it says that it serves."""
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "leasehold", "serve", "--port", "0", *arguments], env={**os.environ, **env},
            stderr=out, stdout=out, cwd=ROOT,
        )  # fmt: skip
    try:
        yield process, _url(log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _url(log: Path) -> str:
    def served_at() -> str:
        found = re.search(r"serving the API on (http://\S+)", log.read_text())
        return found[1] if found and _answers(found[1]) else ""

    return until(served_at, "the server answers", detail=log.read_text)


def _accepts(url: str) -> bool:
    try:
        answer = httpx.post(f"{url}/jobs", json=BODY)
    except httpx.TransportError:
        return False
    assert answer.status_code == 202, answer.text
    return True


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_serve_says_where_answers_and_ends_well_on_sigterm(dsn: str, tmp_path: Path) -> None:
    with served(tmp_path, LEASEHOLD_DSN=dsn) as (process, url):
        assert httpx.post(f"{url}/jobs", json=BODY).status_code == 202
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_several_processes_share_the_port_replace_the_dead_and_end_together(dsn: str, tmp_path: Path) -> None:
    with served(tmp_path, "--workers", "2", LEASEHOLD_DSN=dsn) as (process, url):
        children = _children(process.pid, 2)
        os.kill(children[0], signal.SIGKILL)
        until(lambda: children[0] not in _children(process.pid, 2) and _answers(url), "the dead one is replaced")
        now = _children(process.pid, 2)
        until(lambda: _accepts(url), "a job is accepted")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert not any(Path(f"/proc/{child}").exists() for child in now)


def _children(pid: int, number: int) -> list[int]:
    def children() -> list[int]:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    return until(lambda: found if len(found := children()) == number else [], f"{number} children")


def test_an_address_that_others_can_reach_is_refused_without_tokens_and_served_with_one(
    dsn: str, tmp_path: Path
) -> None:
    refused = ended("serve", "--host", "0.0.0.0", "--port", "0", LEASEHOLD_DSN=dsn)  # noqa: S104
    assert refused.returncode == 2
    assert "no token" in refused.stderr
    assert "leasehold tokens create" in refused.stderr
    made = ended("tokens", "create", "test", "--scope", "submit", "--json", LEASEHOLD_DSN=dsn)
    token = json.loads(made.stdout)["token"]
    with served(tmp_path, "--host", "0.0.0.0", LEASEHOLD_DSN=dsn) as (_, url):  # noqa: S104
        assert httpx.post(f"{url}/jobs", json=BODY).status_code == 401
        answer = httpx.post(f"{url}/jobs", json=BODY, headers={"authorization": f"Bearer {token}"})
        assert answer.status_code == 202


@pytest.mark.parametrize(
    ("code", "words"), [(3, "cannot connect"), (4, "migrate"), (2, "already in use")], ids=["away", "schema", "port"]
)
def test_what_could_not_work_ends_with_its_exit_code_and_a_cure(
    dsn: str, empty_dsn: str, code: int, words: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        where = {3: "postgresql://127.0.0.1:1/nowhere", 4: empty_dsn, 2: dsn}[code]
        found = ended("serve", "--port", port, LEASEHOLD_DSN=where)
    assert found.returncode == code, found.stderr
    assert words in found.stderr
    assert "Traceback" not in found.stderr


def test_openapi_prints_a_complete_description_without_a_database() -> None:
    found = ended("openapi", LEASEHOLD_DSN="postgresql://127.0.0.1:1/nowhere")
    assert found.returncode == 0, found.stderr
    document = json.loads(found.stdout)
    assert document["openapi"].startswith("3.1")
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    ids = []
    for methods in document["paths"].values():
        for operation in methods.values():
            ids.append(operation["operationId"])
            assert operation["summary"]
            assert operation["tags"]
            for status, answer in operation["responses"].items():
                if int(status) >= 400:
                    assert "application/problem+json" in answer["content"], f"{operation['operationId']} {status}"
                    assert answer["content"]["application/problem+json"]["examples"]
            if body := operation.get("requestBody"):
                content = body["content"]["application/json"]
                assert "example" in content or "examples" in content, operation["operationId"]
    assert len(set(ids)) == len(ids)
    assert _references(document) <= {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}


def _references(part: object) -> set[str]:
    match part:
        case dict():
            mine = {str(part["$ref"])} if "$ref" in part else set()
            return mine.union(*map(_references, part.values()))
        case list():
            return set().union(*map(_references, part))
    return set()


def test_every_line_is_json_where_json_was_asked_for(tmp_path: Path, dsn: str) -> None:
    log = tmp_path / "lines"
    with log.open("wb") as out:
        arguments = [sys.executable, "-m", "leasehold", "serve", "--port", "0", "--log-format", "json"]
        process = subprocess.Popen(arguments, env={**os.environ, "LEASEHOLD_DSN": dsn}, stderr=out, cwd=ROOT)
    try:
        until(lambda: "startup complete" in log.read_text(), "the server has started", detail=log.read_text)
    finally:
        process.terminate()
        process.wait()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert any(line["message"].startswith("serving the API on http://") for line in lines)
    assert not [line for line in lines if "color_message" in line]
