"""The API's description: OpenAPI 3.1, with every answer that may come."""

from collections.abc import Iterator
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from leasehold.http.auth import Need
from leasehold.http.examples import example_of
from leasehold.http.problems import SCHEMA, responses
from leasehold.http.schemas import BatchRequest, JobRequest

_SCHEME: Final = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "lh_<id>_<secret>",
    "description": "Made by `leasehold tokens create`. Scopes: submit, status, read, operate.",
}
_ALWAYS: Final = ("malformed-http", "head-too-large", "internal")
_WITH_DATABASE: Final = ("database-unavailable", "schema-mismatch")
_WITH_TOKENS: Final = ("unauthorized", "forbidden", "rate-limited")
_METHODS: Final = ("get", "put", "post", "delete", "patch")


def document(app: FastAPI) -> dict[str, Any]:
    """The description; made once."""
    if app.openapi_schema is None:
        app.openapi_schema = _made(app)
    return app.openapi_schema


def _made(app: FastAPI) -> dict[str, Any]:
    made = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes, openapi_version="3.1.0"
    )
    made.setdefault("components", {}).setdefault("schemas", {})["Problem"] = SCHEMA
    made["components"]["securitySchemes"] = {"bearer": _SCHEME}
    _, schemas = models_json_schema(
        [(JobRequest, "validation"), (BatchRequest, "validation")], ref_template="#/components/schemas/{model}"
    )
    made["components"]["schemas"].update(schemas["$defs"])
    for unused in ("HTTPValidationError", "ValidationError"):
        made["components"]["schemas"].pop(unused, None)
    needs = dict(_needs(app))
    for operation in _operations(made):
        _show(operation, made["components"]["schemas"])
        scopes = operation.pop("x-scopes", None) or needs.get(operation.get("operationId", ""))
        _complete(operation, scopes)
    return made


def _show(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Give each good answer in JSON an example, if it has none."""
    for status, answer in operation["responses"].items():
        content = answer.get("content", {}).get("application/json")
        if (
            status.startswith("2")
            and content
            and content.get("schema")
            and not content.keys() & {"example", "examples"}
        ):
            content["example"] = example_of(content["schema"], schemas)


def _operations(made: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in made["paths"].values():
        for method in _METHODS:
            if method in path:
                yield path[method]


def _needs(app: FastAPI) -> Iterator[tuple[str, list[str]]]:
    """Which operations need which scopes, by their dependencies."""
    for route in _routes(app.routes):
        dependant = getattr(route, "dependant", None)
        for dependency in dependant.dependencies if dependant is not None else ():
            if isinstance(dependency.call, Need):
                yield route.operation_id or "", list(dependency.call.scopes)


def _routes(routes: Any) -> Iterator[Any]:
    for route in routes:
        yield route
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from _routes(inner.routes)


def _complete(operation: dict[str, Any], scopes: list[str] | None) -> None:
    found = operation["responses"]
    if "HTTPValidationError" in str(found.get("422")):
        del found["422"]
        _add(found, "invalid-request")
    _add(found, *_ALWAYS)
    if scopes:
        # Any one of the scopes is enough: alternatives, in the words of OpenAPI.
        operation["security"] = [{"bearer": [scope]} for scope in scopes]
        _add(found, *_WITH_TOKENS, *_WITH_DATABASE)
    elif "security" not in operation:
        operation["security"] = []


def _add(found: dict[str, Any], *names: str) -> None:
    for status, answer in responses(*names).items():
        known = found.get(str(status))
        if known is None:
            found[str(status)] = answer
            continue
        [(media, content)] = answer["content"].items()
        before = known.setdefault("content", {}).setdefault(media, {"schema": content["schema"]})
        fresh = content["examples"].keys() - before.setdefault("examples", {}).keys()
        before["examples"].update(content["examples"])
        if fresh:
            known["description"] = "; ".join(filter(None, [known.get("description", ""), answer["description"]]))
        for name, header in answer.get("headers", {}).items():
            known.setdefault("headers", {}).setdefault(name, header)
