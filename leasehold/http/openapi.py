"""The API's description: OpenAPI 3.1, with every response that may come."""

import json
from collections.abc import Iterable
from inspect import cleandoc
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from leasehold.http.front import Operation, described_path
from leasehold.http.problems import SCHEMA, add_problems
from leasehold.http.schemas import EXAMPLE_ID
from leasehold.version import __version__

_ABOUT: Final = "Records the intent to run jobs, and shows what came of them. It never runs one."
_SCHEME: Final = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "lh_<id>_<secret>",
    "description": "Made by `leasehold tokens create`. Scopes: submit, status, read, operate.",
}
_ALWAYS: Final = ("malformed-http", "head-too-large", "internal")
_WITH_SCOPES: Final = ("unauthorized", "forbidden", "rate-limited", "database-unavailable", "schema-mismatch")
_REF: Final = "#/components/schemas/{model}"
_JSON: Final = "application/json"


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the description of these operations."""
    shown = [operation for operation in operations if operation.name]
    schemas = _schemas(shown) | {"Problem": SCHEMA}
    paths: dict[str, Any] = {}
    for operation in shown:
        methods = paths.setdefault(described_path(operation.path), {})
        methods[operation.method.lower()] = _described(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Leasehold", "description": _ABOUT, "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"bearer": _SCHEME}},
    }


def _described(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    answers = {str(status): dict(answer) for status, answer in operation.answers.items()}
    if operation.result is not None:
        schema = _ref(operation.result)
        shown = {"schema": schema, "example": _example(schema, schemas)}
        next(iter(answers.values()))["content"] = {_JSON: shown}
    found: dict[str, Any] = {
        "tags": [operation.tag],
        "summary": operation.summary,
        "description": cleandoc(operation.endpoint.__doc__ or ""),
        "operationId": operation.name,
        "responses": answers,
    }
    add_problems(answers, *operation.problems, *_ALWAYS, *(_WITH_SCOPES if operation.scopes else ()))
    if operation.scopes and operation.method != "GET":
        add_problems(answers, "outcome-unknown")
    found["security"] = [{"bearer": [scope]} for scope in operation.scopes]  # any one of them is enough
    if operation.parameters:
        found["parameters"] = list(operation.parameters)
    if operation.body is not None:
        content = {"schema": _ref(operation.body), "example": operation.example}
        found["requestBody"] = {"required": True, "content": {_JSON: content}}
    return found


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.model_config.get("title") or model.__name__)}


def _schemas(operations: list[Operation]) -> dict[str, Any]:
    received = [(operation.body, "validation") for operation in operations if operation.body is not None]
    sent = [(operation.result, "serialization") for operation in operations if operation.result is not None]
    models: Any = [*received, *sent]
    _, found = models_json_schema(models, ref_template=_REF)
    text = json.dumps(found["$defs"])
    for name, schema in found["$defs"].items():  # a schema has the name that its title is, whatever the class is called
        text = text.replace(f'"{_REF.format(model=name)}"', f'"{_REF.format(model=schema["title"])}"')
    return {schema["title"]: schema for schema in json.loads(text).values()}


# -- examples, made from the schemas: what is shown fits what is promised

_BY_NAME: Final[dict[str, Any]] = {
    "jobType": "SEND_EMAIL", "queue": "mail", "queues": ["mail"], "kinds": ["SEND_EMAIL"], "name": "shop",
    "namespace": "shop", "status": "COMPLETED", "state": "success", "host": "web-1", "worker": "web-1:4711:a3f9",
    "leaseOwner": None, "leaseExpiresAt": None, "cursor": None, "error": None, "errorClass": "ConnectionError",
    "errorMessage": "no route to host", "reason": None, "reasonDetail": None, "exclusiveKey": "customer-7",
    "idempotencyKey": "req_550e8400-e29b-41d4-a716-446655440000", "key": "nightly-report", "tags": ["eu"],
    "payload": {"to": "user@example.com"}, "result": {"sent": True},
    "token": "lh_AZpfLnwRerye_BI0VniavQ_47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU",
    "scopes": ["submit", "status"], "createdBy": None, "revokedAt": None, "cron": "0 3 * * *",
    "timeZone": "Europe/Rome",
}  # fmt: skip
"""What a field of this name shows, where its schema allows that."""

_BY_FORMAT: Final = {"uuid": EXAMPLE_ID, "date-time": "2030-01-31T12:00:00Z", "uri-reference": f"/jobs/{EXAMPLE_ID}"}
_TYPES: Final = {"null": type(None), "string": str, "array": list, "object": dict, "boolean": bool}


def _example(schema: dict[str, Any], schemas: dict[str, Any], name: str = "", depth: int = 0) -> Any:
    """Return a value that fits the schema."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    choices = schema.get("anyOf") or schema.get("oneOf") or [schema]
    if name in _BY_NAME and any(_allows(choice, _BY_NAME[name]) for choice in choices):
        return _BY_NAME[name]
    if schema.get("default") is not None:
        return schema["default"]
    chosen = next(choice for choice in choices if choice.get("type") != "null")
    if chosen is not schema:
        return _example(chosen, schemas, name, depth)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    return None if depth > 6 else _plain(schema, schemas, name, depth)


def _plain(schema: dict[str, Any], schemas: dict[str, Any], name: str, depth: int) -> Any:  # noqa: PLR0911 (a table)
    match schema.get("type"):
        case "object":
            more = schema.get("additionalProperties")
            fields = schema.get("properties") or ({"queued": more} if isinstance(more, dict) else {})
            return {field: _example(part, schemas, field, depth + 1) for field, part in fields.items()}
        case "array":
            least = max(1, schema.get("minItems", 0))
            return [_example(schema.get("items", {}), schemas, name, depth + 1)] * least
        case "string":
            return _BY_FORMAT.get(schema.get("format", ""), "mail")
        case "integer":
            return int(schema.get("minimum", 1)) or 1
        case "number":
            return min(float(schema.get("maximum", 1.5)), max(float(schema.get("minimum", 0)), 0.5))
        case "boolean":
            return False
    return None


def _allows(schema: dict[str, Any], value: Any) -> bool:
    if "enum" in schema or "const" in schema:
        return value in schema.get("enum", [schema.get("const")])
    if "$ref" in schema or "format" in schema or "$ref" in schema.get("items", {}):
        return False
    return "type" not in schema or type(value) is _TYPES.get(schema["type"])
