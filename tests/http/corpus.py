"""Hostile bodies of `POST /jobs`, and harmless ones that look hostile."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MIB = 1024 * 1024


@dataclass(frozen=True)
class Body:
    """A body for `POST /jobs`."""

    name: str
    content: bytes
    statuses: frozenset[int] = frozenset({400, 413, 415, 422})
    content_type: bytes = b"application/json"


def job(payload: str = "{}", more: str = "", key: str = '"k"') -> bytes:
    """A submission around a payload that need not be JSON."""
    return f'{{"jobType": "K", "payload": {payload}, "idempotencyKey": {key}{more}}}'.encode("utf-8", "surrogatepass")


def _texts() -> Iterator[Body]:
    yield Body("NUL escaped in a value", job(r'{"a": "\u0000"}'))
    yield Body("NUL escaped in a key", job(r'{"a\u0000": 1}'))
    yield Body("NUL raw in a value", job('{"a": "\0"}'))
    yield Body("NUL raw around the object", b"\0" + job() + b"\0")
    yield Body("NUL in jobType", b'{"jobType": "K\\u0000", "idempotencyKey": "k"}')
    yield Body("NUL in the key", job(key=r'"k\u0000"'))
    yield Body("NUL in a tag", job(more=r', "tags": ["\u0000"]'))
    yield Body("NUL in the queue", job(more=r', "queue": "\u0000"'))
    yield Body("NUL in the exclusive key", job(more=r', "exclusiveKey": "\u0000"'))
    yield Body("high surrogate alone", job(r'{"a": "\ud800"}'))
    yield Body("low surrogate alone", job(r'{"a": "\udc00"}'))
    yield Body("surrogates the wrong way round", job(r'{"a": "\udc00\ud800"}'))
    yield Body("surrogate in a key of the payload", job(r'{"\udfff": 1}'))
    yield Body("surrogate in the key", job(key=r'"\ud800"'))
    yield Body("surrogate as three raw bytes", job('{"a": "\ud800"}'))
    yield Body("overlong UTF-8", job().replace(b"{}", b'{"a": "\xc0\x80"}'))
    yield Body("cut-off UTF-8", job().replace(b"{}", b'{"a": "\xe2\x82"}'))
    yield Body("bytes that are never UTF-8", b"\xff\xfe\xfd")
    yield Body("Latin-1", '{"jobType": "Kü", "idempotencyKey": "k"}'.encode("latin-1"))
    yield Body("UTF-16", '{"jobType": "K", "idempotencyKey": "k"}'.encode("utf-16"))
    yield Body("UTF-32", '{"jobType": "K", "idempotencyKey": "k"}'.encode("utf-32"))
    yield Body("a byte order mark", b"\xef\xbb\xbf" + job())
    yield Body("a raw line end in a string", job('{"a": "\n"}'))
    yield Body("a broken escape", job(r'{"a": "\x"}'))
    yield Body("a cut-off escape", job(r'{"a": "\u12"}'))
    yield Body("an endless string", b'{"jobType": "' + b"a" * 100_000)
    yield Body("half a million backslashes", b'{"jobType": "' + b"\\" * 500_000)


def _numbers() -> Iterator[Body]:
    for number in (
        "1e131071",
        "-1e131071",
        "1e-131071",
        "1e400000000000000000000",
        "1E+999",
        "1e309",
        "9" * 5_000,
        "0." + "1" * 5_000,
        "-" + "9" * 200_000,
    ):
        yield Body(f"the number {number[:20]} of {len(number)} characters", job(f'{{"n": {number}}}'))
    many = ", ".join(f'"{n}": 1e131071' for n in range(60))
    yield Body("nine hundred bytes of huge numbers", job(f"{{{many}}}"))
    for word in (
        "NaN",
        "Infinity",
        "-Infinity",
        "nan",
        "inf",
        "undefined",
        "True",
        "None",
        "0x10",
        "01",
        "1.",
        ".5",
        "+1",
        "1_000",
        "--1",
        "1e",
    ):
        yield Body(f"the word {word}", job(f'{{"n": {word}}}'))
    for field in ("priority", "maxAttempts"):
        for value in (
            "1e9",
            "32768",
            "-32768",
            "99999999999999999999",
            "9" * 4_400,
            "1.5",
            "true",
            '"1"',
            "[]",
            "null1",
            "1e131071",
        ):
            yield Body(f"{field} {value[:20]} of {len(value)}", job(more=f', "{field}": {value}'))
    for value in (
        '"yesterday"',
        '"2026-13-45T99:99:99Z"',
        '"2026-01-01T00:00:00"',
        "1e20",
        '"99999-01-01T00:00:00Z"',
        '"-4713-01-01T00:00:00Z"',
        "[]",
        '"infinity"',
        '"now"',
        "9" * 400,
    ):
        yield Body(f"runAt {value[:30]}", job(more=f', "runAt": {value}'))


def _shapes() -> Iterator[Body]:
    yield Body("nothing", b"")
    yield Body("spaces", b" " * 1_000)
    for text in (
        "null",
        "true",
        "1",
        '"text"',
        "[]",
        "{}",
        "[[]]",
        '[{"jobType": "K"}]',
        "{",
        "}",
        "]",
        "[",
        ",",
        ":",
        '{"jobType"}',
        "{'jobType': 'K'}",
        "{jobType: 1}",
        '{"jobType": "K",}',
    ):
        yield Body(f"the text {text}", text.encode())
    yield Body("two objects", job() * 2)
    yield Body("something after the object", job() + b" x")
    yield Body("a comment", b"/* hi */" + job())
    yield Body("depth 65", job("[" * 65 + "]" * 65))
    yield Body("objects at depth 10,000", job('{"a":' * 10_000 + "1" + "}" * 10_000))
    yield Body("arrays at depth 10,000", b"[" * 10_000 + b"]" * 10_000)
    yield Body("arrays at depth 500,000, never closed", b"[" * 500_000)
    yield Body("depth 10,000 in a field that is unknown", job(more=f', "x": {"[" * 10_000}{"]" * 10_000}'))
    yield Body("depth 10,000 in jobType", b'{"idempotencyKey": "k", "jobType": ' + b"[" * 10_000 + b"]" * 10_000 + b"}")
    yield Body("200,000 values", job(json.dumps({"a": [0] * 200_000})))
    yield Body("duplicate keys in the payload", job('{"a": 1, "a": 2}'))
    yield Body("duplicate keys deep in the payload", job('{"b": [{"a": 1, "a": 2}]}'))
    yield Body("duplicate keys spelled differently", job('{"a": 1, "\\u0061": 2}'))
    names = ",".join(f'"{n}": 1' for n in range(49_000))
    yield Body("49,000 names and the last of them again", job(f'{{{names}, "48999": 2}}'))
    yield Body("jobType twice", b'{"jobType": "K", "jobType": "L", "idempotencyKey": "k"}')
    yield Body("the key twice", b'{"jobType": "K", "idempotencyKey": "k", "idempotencyKey": "l"}')
    yield Body("an unknown field", job(more=', "state": "running"'))
    yield Body("a field in snake case", job(more=', "max_attempts": 3'))
    yield Body("__proto__", job(more=', "__proto__": {"admin": true}'))
    yield Body("a thousand unknown fields", job(more="".join(f', "x{n}": 1' for n in range(1_000))))
    yield Body("an unknown field with a name of 10^5 characters", job(more=f', "{"x" * 100_000}": 1'))
    for payload in ("[]", '"text"', "1", "true"):
        yield Body(f"the payload {payload}", job(payload))
    for kind in ("1", "null", "[]", "{}", '""', json.dumps("K" * 201), json.dumps("ü" * 150)):
        yield Body(f"jobType {kind[:20]}", f'{{"jobType": {kind}, "idempotencyKey": "k"}}'.encode())
    for key in ("1", "[]", '""', json.dumps("k" * 501), json.dumps("k" * 100_000)):
        yield Body(f"idempotencyKey {key[:20]} of {len(key)}", job(key=key))
    yield Body("no key", b'{"jobType": "K"}')
    yield Body("no jobType", b'{"idempotencyKey": "k"}')
    for tags in ('"a"', "[1]", "[null]", "{}", json.dumps([""] * 51), json.dumps(["t"] * 100_000)):
        yield Body(f"tags {tags[:20]} of {len(tags)}", job(more=f', "tags": {tags}'))
    yield Body("an unknown idempotency", job(more=', "idempotency": "lenient"'))


def _sizes() -> Iterator[Body]:
    yield Body("2 MB", job(json.dumps({"a": "x" * 2 * MIB})))
    yield Body("10 MB", job(json.dumps({"a": "x" * 10 * MIB})))
    yield Body("10 MB of brackets", b"[" * 10 * MIB)
    yield Body("10 MB of spaces", b" " * 10 * MIB)


def _types() -> Iterator[Body]:
    for kind in (
        b"text/plain",
        b"application/xml",
        b"application/x-www-form-urlencoded",
        b"multipart/form-data; boundary=x",
        b"application/octet-stream",
        b"application/jsonp",
        b"image/png",
        b"*/*",
        b"json",
        b"/",
        b";",
        b"application/json-patch+json\x80",
    ):
        yield Body(f"the content type {kind.decode('latin-1')}", job(), content_type=kind)
    yield Body(
        "a charset that is not UTF-8", job(), frozenset({202, 400, 415, 422}), b"application/json; charset=utf-16"
    )
    yield Body("gzip without saying so", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03")


REFUSED = [*_texts(), *_numbers(), *_shapes(), *_sizes(), *[body for body in _types() if 202 not in body.statuses]]
"""Nothing of these may be recorded."""

ACCEPTED: list[tuple[str, Any]] = [
    ("keys of 10^5 characters", {"k" * 100_000: "v"}),
    ("keys in many scripts", {"ключ": 1, "キー": 2, "🔑": 3, "\u202e": 4, "\u0301": 5, "": 6, " ": 7}),
    ("noncharacters and controls", {"a": "\u0001\u001f\u007f\ufffe\uffff\U0010ffff"}),
    (
        "quotes, statements and markup",
        {"a": "'; drop table jobs; --", "b": "<script>", "c": "{{7*7}}", "d": "%s %(x)s {0}"},
    ),
    ("large integers", {"a": 2**64, "b": -(2**63) - 1, "c": 10**999}),
    ("depth 60", json.loads('{"a":' * 60 + "1" + "}" * 60)),
    ("nearly a megabyte", {"a": "x" * (MIB - 2_000)}),
    ("90,000 numbers", {"a": [0] * 90_000}),
    ("names of ours", {"jobType": "x", "__class__": "y", "constructor": None, "id": 1}),
]
"""Harmless: these come back equal."""
