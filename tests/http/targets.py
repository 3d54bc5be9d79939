"""Hostile targets and methods, and what is not HTTP at all."""

_WORDS = rb"""
/jobs/%00 /jobs/%ff /jobs/% /jobs/%zz /jobs/..%2f..%2fetc%2fpasswd /jobs/../../etc/passwd
/jobs/00000000-0000-0000-0000-000000000000 /jobs/00000000000000000000000000000000
/jobs/{00000000-0000-0000-0000-000000000000} /jobs/urn:uuid:00000000-0000-0000-0000-000000000000
/jobs/00000000-0000-0000-0000-00000000000 /jobs/1 /jobs/-1 /jobs/null /jobs/%20 /jobs/%0d%0aX-Injected:%201
/jobs/%E2%80%AE /jobs/;/ /jobs// //jobs /jobs/x/result /jobs/x/events /jobs/x/y/z
/jobs/00000000-0000-0000-0000-000000000000/result /jobs/00000000-0000-0000-0000-000000000000/events
/jobs/x?wait=1e309 /jobs/x?wait=-1 /jobs/x?wait=61 /jobs/x?wait=nan /jobs/x?wait=%00 /jobs/x?wait /jobs/x?wait=1&wait=2
/ops/jobs?limit=-1 /ops/jobs?limit=99999999999999999999 /ops/jobs?limit=0 /ops/jobs?limit=x /ops/jobs?cursor=%00
/ops/jobs?cursor=e30 /ops/jobs?cursor=%ff%fe /ops/jobs?cursor=bnVsbA /ops/jobs?cursor=W10 /ops/jobs?cursor=IiI
/ops/jobs?state=nope /ops/jobs?state=%00 /ops/jobs?kind=%00 /ops/jobs?queue=%00 /ops/jobs?tag=%00
/ops/jobs?exclusiveKey=%00 /ops/jobs?errorClass=%00 /ops/jobs?kind=%ff /ops/jobs?kind=%ed%a0%80 /ops/jobs?kind=
/ops/jobs?createdAfter=x /ops/jobs?createdAfter=infinity /ops/jobs?createdAfter=0001-01-01T00:00:00-23:59
/ops/jobs?createdAfter=0001-01-01T00:00:00%2B23:59 /ops/jobs?createdBefore=9999-12-31T23:59:59%2B00:00
/ops/jobs?createdBefore=9999-12-31T23:59:59-23:59 /ops/jobs?createdAfter=1e400 /ops/jobs?createdAfter=2026-01-01
/ops/jobs?%00=%00 /ops/jobs/%00 /ops/jobs/x/explain /ops/jobs/x/logs /ops/jobs/%00/explain /ops/jobs/x/retry
/ops/jobs/x/cancel /ops/jobs/x/run /ops/jobs/retry /ops/jobs/cancel /ops/limits /ops/limits/%00/%00 /ops/limits/nope
/ops/limits/queue/%ff /ops/queues/%00/pause /ops/queues/%ff/resume /ops/queues/%ed%a0%80/pause
/ops/schedules/a%0Ab /ops/schedules/a%0A /ops/queues/a%0Ab/pause /ops/limits/queue/a%0A /ops/jobs/x%0A /jobs/%0A
/ops/errors?x=%00 /ops/stats?x=%00 /ops/workers?x=%00 /ops/tokens/%00 /ops/tokens/x /ops/tokens
/problems/%00 /problems/../../etc/passwd /problems/nope /problems/not-found /nope / /metrics?x=%00
/healthz/ /readyz?x /%6a%6f%62s /JOBS /jobs/batch /jobs?x=%00 /docs /redoc /static/../x
"""

TARGETS: list[bytes] = [
    *_WORDS.split(),
    b"/jobs/\xff",
    b"/jobs/\xe2\x80\xae",
    b"/jobs/" + b"a" * 5_000,
    b"/jobs/" + b"%41" * 5_000,
    b"/jobs/00000000-0000-0000-0000-000000000000?wait=" + b"9" * 5_000,
    b"/ops/jobs?cursor=" + b"A" * 5_000,
    b"/ops/jobs?kind=" + b"k" * 8_000,
    b"/ops/jobs?" + b"&".join(b"x%d=1" % n for n in range(5_000)),
    b"/ops/jobs?" + b"&" * 5_000,
]
"""Asked for with every method."""

METHODS = b"GET HEAD POST PUT PATCH DELETE OPTIONS TRACE PROPFIND PURGE MKCOL SEARCH".split()

_POST = b"POST /jobs HTTP/1.1\r\nHost: x\r\n"
_GET = b"GET / HTTP/1.1\r\n"

PROTOCOL: list[bytes] = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 600,
    b"GET\r\n\r\n",
    b"\0" * 1_000,
    b"GET / HTTP/9.9\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"FOO / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"get / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://[::1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /nope HTTP/1.0\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    _GET + b"Host\r\n\r\n",
    _GET + b": x\r\n\r\n",
    _GET + b"A: \0\r\n\r\n",
    _GET + b"Host: x\r\n X: folded\r\n\r\n",
    _GET + b"Host: x\r\nExpect: 200-maybe\r\n\r\n",
    _GET + b"".join(b"X-%d: y\r\n" % n for n in range(20_000)) + b"\r\n",
    _GET + b"X: " + b"y" * 1_000_000 + b"\r\n\r\n",
    _GET + b"Host: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    _POST + b"Content-Length: -1\r\n\r\n",
    _POST + b"Content-Length: 99999999999999999999999\r\n\r\n",
    _POST + b"Content-Length: 9223372036854775807\r\nContent-Type: application/json\r\n\r\n{}",
    _POST + b"Content-Length: x\r\n\r\n",
    _POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    _POST + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}",
    _POST + b"Transfer-Encoding: gzip\r\n\r\n{}",
    _POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    _POST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n",
]
"""Not HTTP, or hardly: answered with a 4xx, or dropped."""
