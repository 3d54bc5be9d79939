"""Bytes around a body are counted, and an answer reaches a client that is still sending."""

import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.conftest import Admin
from tests.http.raw import exchange, parse, read_answer, request
from tests.http.running import Served, serving

MIB = 1024 * 1024
HEAD = request(b"GET", b"/healthz", length=None, headers=[(b"Transfer-Encoding", b"chunked")])


@pytest.fixture(scope="module")
def api(admin: Admin, migrated: str) -> Iterator[Served]:
    with admin.database(template=migrated) as name, serving(admin.server.dsn(name), token=True) as served:
        yield served
        assert "Traceback" not in served.log.read_text()


def sent(api: Served, head: bytes, piece: bytes, most: int) -> tuple[int, bytes]:
    """How many bytes were sent before the server ended it, and what it said."""
    got, number = b"", 0
    with socket.create_connection(("127.0.0.1", api.port), timeout=60) as peer:
        with suppress(ConnectionError):
            peer.sendall(head)
            while number < most:
                peer.sendall(piece)
                number += len(piece)
        with suppress(ConnectionError):
            while part := peer.recv(65536):
                got += part
    return number, got


@pytest.mark.parametrize(
    ("head", "piece"),
    [(b"0\r\n", b"a:\r\n" * 16_384), (b"0\r\na: ", b"x" * 65_536), (b"1;a=", b"x" * 65_536), (b"", b"1\r\nx\r\n" * 9)],
    ids=["many trailers", "one long trailer", "a long chunk extension", "an honest body"],
)
def test_what_is_around_a_body_is_counted_and_cut_off(api: Served, head: bytes, piece: bytes) -> None:
    honest = head == b""
    before = api.memory()
    number, _ = sent(api, HEAD + head, piece, 9 * 100 if honest else 100 * MIB)
    assert honest or number < 50 * MIB
    assert api.memory("VmHWM") - before < 100 * MIB
    healthy = exchange(api.port, request(b"GET", b"/healthz"))
    assert healthy is not None
    assert healthy.status == 200


def test_trailers_are_no_headers(api: Served) -> None:
    """They come when it was decided who may do what."""
    data = request(length=None, headers=[(b"Transfer-Encoding", b"chunked")])
    data += b"2\r\n{}\r\n0\r\nAuthorization: Bearer " + (api.token or "").encode() + b"\r\n\r\n"
    answer = exchange(api.port, data)
    assert answer is not None
    assert answer.status == 401


def test_many_small_chunks_with_trailers_are_one_body(api: Served) -> None:
    body = b'{"jobType": "k", "idempotencyKey": "chunks"}' + b" " * 200_000
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\nx-checksum: abc\r\n\r\n"
    answer = exchange(
        api.port, request(length=None, headers=[(b"Transfer-Encoding", b"chunked")], token=api.token) + chunks
    )
    assert answer is not None
    assert answer.status == 202, answer.body


def test_a_body_that_is_too_large_gets_its_413_and_no_reset(api: Served) -> None:
    for _ in range(5):
        asked = urllib.request.Request(  # noqa: S310 (our own server)
            f"{api.url}/jobs",
            data=b" " * (11 * MIB),
            headers={"content-type": "application/json", "authorization": f"Bearer {api.token}"},
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked, timeout=60)  # noqa: S310
        assert refused.value.code == 413
        refused.value.close()


def test_who_goes_on_sending_after_a_refusal_is_cut_off(api: Served) -> None:
    head = request(length=str(10**12).encode(), token=api.token)
    number, got = sent(api, head, b" " * 65_536, 1024 * MIB)
    assert number < 1024 * MIB
    answer = parse(got, closed=True)
    assert answer is None or answer.status == 413


@pytest.mark.parametrize("target", [b"a:1", b"/", b"127.0.0.1:80", b"*", b"http://a/"])
@pytest.mark.parametrize("method", [b"CONNECT", b"OPTIONS", b"GET"])
def test_a_target_that_is_no_path_is_refused_without_a_defect(api: Served, method: bytes, target: bytes) -> None:
    with socket.create_connection(("127.0.0.1", api.port), timeout=60) as peer:
        peer.sendall(method + b" " + target + b" HTTP/1.1\r\nHost: a:1\r\n\r\n")
        answer = read_answer(peer, 60)
    assert answer is not None
    assert answer.status in {400, 404, 405}, answer
    assert "AttributeError" not in api.log.read_text()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GARBAGE\r\n\r\n",
        b"\x00\xff" * 40_000,
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n" + b"x" * 1000,
        b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
        b"GET /" + b"a" * 200_000,
    ],
    ids=["no method", "binary", "two hosts", "a proxy's", "a head too large"],
)
@pytest.mark.parametrize("between", [0, 3])
def test_a_request_with_garbage_behind_it_gets_its_answer_and_then_the_connection_is_closed(
    api: Served, garbage: bytes, between: int
) -> None:
    body = b'{"jobType": "k", "idempotencyKey": "garbage behind it"}'
    got = b""
    with socket.create_connection(("127.0.0.1", api.port), timeout=60) as peer:
        with suppress(ConnectionError):
            peer.sendall(request(body=body, token=api.token) + request(b"GET", b"/healthz") * between + garbage)
        with suppress(ConnectionError):
            while part := peer.recv(65536):
                got += part
    statuses = re.findall(rb"HTTP/1.1 (\d+)", got)
    assert statuses[: between + 1] == [b"202"] + [b"200"] * between, got
    # A long head may become too long when all before it was answered: then it has an answer of its own.
    assert statuses[between + 1 :] == [] or len(garbage) > 100_000, got
    assert "a defect while answering" not in api.log.read_text()


@pytest.mark.parametrize("rest", [b"", b"GET /heal", request(length=b"100") + b"{"], ids=["whole", "a head", "a body"])
@pytest.mark.parametrize("number", [1, 300])
def test_a_client_that_sends_no_more_gets_all_its_answers(api: Served, number: int, rest: bytes) -> None:
    one = b'{"jobType": "k", "idempotencyKey": "%d"}'
    data = b"".join(request(body=one % n, token=api.token) for n in range(number))
    got = b""
    with socket.create_connection(("127.0.0.1", api.port), timeout=60) as peer:
        peer.sendall(data + rest)
        peer.shutdown(socket.SHUT_WR)
        while part := peer.recv(65_536):
            got += part
    assert got.count(b"HTTP/1.1 20") == number, got[-1000:]


def test_a_stream_ends_with_the_client_that_reads_it(api: Served) -> None:
    body = b'{"jobType": "k", "idempotencyKey": "streamed"}'
    answer = exchange(api.port, request(body=body, token=api.token))
    assert answer is not None
    job = answer.json()["jobId"]
    with socket.create_connection(("127.0.0.1", api.port), timeout=60) as peer:
        peer.sendall(request(b"GET", f"/jobs/{job}/events".encode(), length=None, token=api.token))
        peer.recv(1)
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(65_536):
            pass
