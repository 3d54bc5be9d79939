"""Examples for the API's description, made from its schemas: what is shown fits what is promised."""

from typing import Any, Final

_BY_NAME: Final[dict[str, Any]] = {
    "jobType": "SEND_EMAIL",
    "queue": "mail",
    "queues": ["mail"],
    "kinds": ["SEND_EMAIL"],
    "name": "shop",
    "namespace": "shop",
    "status": "COMPLETED",
    "state": "success",
    "host": "web-1",
    "worker": "web-1:4711:a3f9",
    "leaseOwner": None,
    "leaseExpiresAt": None,
    "cursor": None,
    "error": None,
    "errorClass": "ConnectionError",
    "errorMessage": "no route to host",
    "reason": None,
    "reasonDetail": None,
    "exclusiveKey": "customer-7",
    "idempotencyKey": "req_550e8400-e29b-41d4-a716-446655440000",
    "key": "nightly-report",
    "tags": ["eu"],
    "payload": {"to": "user@example.com"},
    "result": {"sent": True},
    "token": "lh_AZpfLnwRerye_BI0VniavQ_47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU",
    "scopes": ["submit", "status"],
    "createdBy": None,
    "revokedAt": None,
    "cron": "0 3 * * *",
    "timeZone": "Europe/Rome",
}
"""What a field of this name shows, where its schema allows that."""

_BY_FORMAT: Final = {
    "uuid": "019a5f2e-7c11-7abc-8def-0123456789ab",
    "date-time": "2030-01-31T12:00:00Z",
    "uri-reference": "/jobs/019a5f2e-7c11-7abc-8def-0123456789ab",
}


def example_of(schema: dict[str, Any], schemas: dict[str, Any], name: str = "", depth: int = 0) -> Any:
    """A value that fits the schema."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    kinds = _kinds(schema, schemas)
    if name in _BY_NAME and _fits(_BY_NAME[name], kinds, schema):
        return _BY_NAME[name]
    for word in ("const", "default"):
        if schema.get(word) is not None:
            return schema[word]
    if "enum" in schema:
        return schema["enum"][0]
    for choice in schema.get("anyOf") or schema.get("oneOf") or ():
        if choice.get("type") != "null":
            return example_of(choice, schemas, name, depth)
    if depth > 6:
        return None
    return _plain(schema, schemas, name, depth)


def _plain(schema: dict[str, Any], schemas: dict[str, Any], name: str, depth: int) -> Any:  # noqa: PLR0911 (a table)
    match schema.get("type"):
        case "object":
            fields = schema.get("properties", {})
            more = schema.get("additionalProperties")
            if not fields and isinstance(more, dict):
                return {"queued": example_of(more, schemas, "", depth + 1)}
            return {field: example_of(part, schemas, field, depth + 1) for field, part in fields.items()}
        case "array":
            least = max(1, schema.get("minItems", 0))
            return [example_of(schema.get("items", {}), schemas, name, depth + 1)] * least
        case "string":
            return _BY_FORMAT.get(schema.get("format", ""), "mail")
        case "integer":
            return int(schema.get("minimum", 1)) or 1
        case "number":
            return min(float(schema.get("maximum", 1.5)), max(float(schema.get("minimum", 0)), 0.5))
        case "boolean":
            return False
    return None


def _kinds(schema: dict[str, Any], schemas: dict[str, Any]) -> set[str]:
    """The types of value that a schema allows; none: all."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    choices = schema.get("anyOf") or schema.get("oneOf") or [schema]
    found: set[str] = set()
    for choice in choices:
        found |= _kinds(choice, schemas) if "$ref" in choice else {choice["type"]} if "type" in choice else set()
    return found


def _fits(value: Any, kinds: set[str], schema: dict[str, Any]) -> bool:
    if "enum" in schema or "const" in schema:
        return value in schema.get("enum", [schema.get("const")])
    known = {type(None): "null", str: "string", list: "array", dict: "object", bool: "boolean"}
    wanted = known[type(value)]
    if (kinds and wanted not in kinds) or (wanted == "array" and "$ref" in str(schema)):
        return False
    return "format" not in schema and not any(
        "format" in choice for choice in schema.get("anyOf", ()) if value is not None
    )
