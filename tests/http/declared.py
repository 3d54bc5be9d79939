"""Whether an answer is one that the OpenAPI document promises."""

import json
import re
from typing import Any
from urllib.parse import unquote_to_bytes

import jsonschema_rs

from tests.http.raw import RawAnswer

PROBLEM = "application/problem+json"
BELOW = {"/problems/malformed-http", "/problems/head-too-large"}
"""What may come for anything at all: whether it is declared is seen by the generated cases."""


class Declared:
    """The document of one server."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self._routes = [(_pattern(path), item) for path, item in sorted(document["paths"].items(), key=_fixed_first)]
        self._validators: dict[str, Any] = {}

    def complaints(self, method: str, target: bytes, answer: RawAnswer) -> list[str]:
        """What `check` has to say, for those who go on and look at the next."""
        try:
            self.check(method, target, answer)
        except AssertionError as error:
            return [str(error)[:600]]
        return []

    def check(self, method: str, target: bytes, answer: RawAnswer) -> None:
        """Fail unless the status, the content type and the body are declared for this request."""
        shown = f"{method} {target[:100]!r} -> {answer.status} {answer.content_type} {answer.body[:300]!r}"
        assert answer.status < 500, shown
        if answer.content_type == PROBLEM and method != "HEAD":
            check_problem(answer)
        item = self._route(target)
        operation = None if item is None else item.get("get" if method == "HEAD" else method.lower())
        if method == "HEAD":  # what GET says, without its body; there is none of a stream
            assert answer.body == b"", shown
            declared = {} if operation is None else operation["responses"]
            assert str(answer.status) in {*declared, "400", "404", "405", "431"}, shown
            return
        if _refused_below(method, answer):
            return
        if operation is None:
            expected = {404, 405} if item is None else {405}
            assert answer.status in expected | ({404} if _odd(target) else set()), f"nothing declared, yet {shown}"
            if method != "HEAD":
                assert answer.content_type == PROBLEM, shown
            return
        declared = operation["responses"].get(str(answer.status))
        assert declared is not None, f"{sorted(operation['responses'])} declared, yet {shown}"
        content = declared.get("content", {})
        if content or answer.body:
            assert answer.content_type in content, f"{sorted(content)} declared, yet {shown}"
            self._check_body(content[answer.content_type].get("schema"), answer, shown)

    def _route(self, target: bytes) -> dict[str, Any] | None:
        path = unquote_to_bytes(target.partition(b"?")[0])
        return next((item for pattern, item in self._routes if pattern.fullmatch(path)), None)

    def _check_body(self, schema: dict[str, Any] | None, answer: RawAnswer, shown: str) -> None:
        if not schema or not answer.content_type.endswith("json"):
            return
        name = json.dumps(schema)
        if name not in self._validators:
            whole = {"components": self.document.get("components", {}), **schema}
            self._validators[name] = jsonschema_rs.Draft202012Validator(whole, validate_formats=True)
        wrong = [str(error) for error in self._validators[name].iter_errors(answer.json())]
        assert not wrong, f"{wrong[:3]} in {shown}"


def check_problem(answer: RawAnswer) -> None:
    """Fail unless the body is a complete problem of RFC 9457."""
    data = answer.json()
    assert data["status"] == answer.status
    assert data["type"].startswith("/problems/")
    assert isinstance(data["title"], str)
    assert isinstance(data["detail"], str)
    assert len(answer.body) < 20_000, f"a refusal must not echo what was sent: {answer.body[:200]!r}"


def _fixed_first(item: tuple[str, Any]) -> tuple[bool, str]:
    return "{" in item[0], item[0]


def _refused_below(method: str, answer: RawAnswer) -> bool:
    if answer.content_type != PROBLEM or answer.status not in {400, 431}:
        return False
    return method == "HEAD" or answer.json()["type"] in BELOW


def _pattern(path: str) -> re.Pattern[bytes]:
    parts = (b"[^/]+" if part.startswith("{") else re.escape(part.encode()) for part in path.split("/"))
    return re.compile(b"/".join(parts), re.DOTALL)


def _odd(target: bytes) -> bool:
    """Whether a router may read the path differently than we do."""
    return b"%2f" in target.lower() or b"//" in target or b".." in target
