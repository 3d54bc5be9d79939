"""The API's description shows what it promises."""

import subprocess
import sys
from typing import Any

import jsonschema_rs
import pytest

from leasehold import App, api

DOCUMENT = api(App(dsn="postgresql://unknown.invalid/x")).openapi()
ANSWERS = [
    (f"{method} {path} {status}", answer["content"]["application/json"])
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
    for status, answer in operation["responses"].items()
    if status.startswith("2") and "application/json" in answer.get("content", {})
]


@pytest.mark.parametrize(("name", "content"), ANSWERS, ids=[name for name, _ in ANSWERS])
def test_every_good_answer_has_an_example_that_fits_its_schema(name: str, content: dict[str, Any]) -> None:
    whole = {"components": DOCUMENT["components"], **content["schema"]}
    validator = jsonschema_rs.Draft202012Validator(whole, validate_formats=True)
    assert [str(error) for error in validator.iter_errors(content["example"])] == []


def test_every_request_with_a_body_has_an_example() -> None:
    for methods in DOCUMENT["paths"].values():
        for operation in methods.values():
            if "requestBody" in operation:
                assert "example" in operation["requestBody"]["content"]["application/json"], operation["operationId"]


def test_every_list_has_pages() -> None:
    """Each answer with a list of things that grow in number has a cursor, and its request takes one."""
    schemas = DOCUMENT["components"]["schemas"]
    for path, methods in DOCUMENT["paths"].items():
        operation = methods.get("get", {})
        if operation.get("operationId", "").startswith("list"):
            content = operation["responses"]["200"]["content"]["application/json"]
            schema = schemas[content["schema"]["$ref"].rpartition("/")[2]]
            assert "cursor" in schema["properties"], path
            assert {"cursor", "limit"} <= {parameter["name"] for parameter in operation["parameters"]}, path


def test_the_description_is_made_without_the_source_files() -> None:
    code = (
        "import inspect, leasehold; from leasehold import App\n"
        "inspect.getsource = inspect.getsourcelines = inspect.findsource = None\n"
        "print(leasehold.api(App()).openapi()['components']['schemas']['OpsJob']['properties']['attempt'])"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "How often it was claimed." in found.stdout
