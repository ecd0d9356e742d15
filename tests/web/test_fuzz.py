"""Requests that no client would send: whatever comes, no answer is a 5xx, and every error is a problem document.

They are written to the socket byte by byte, because a client library would refuse to send most of them.
"""

from __future__ import annotations

import gzip
import json
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote_from_bytes

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from tests.edges.replay import HEALTHY, STORY, engine, scene
from tests.web.harness import Running, serving

BOUNDED = settings(
    max_examples=40, deadline=None, database=None, derandomize=True, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
NOT_HTTP = b"Invalid HTTP request received."
"""What the HTTP parser says of bytes that are no request: no route has seen them."""
AWAY = {"/readyz", "/startupz"}
"""They say 503 for what they are there to tell."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with one run that crashed, so that there is something behind the routes."""
    folder = tmp_path_factory.mktemp("fuzz")
    crash = scene(STORY, needs=["--enable-piecewise-cuda-graph"], exit=-9)
    argv = engine(folder, [crash, scene(HEALTHY)], "--enable-piecewise-cuda-graph")
    with serving(folder, [argv]) as running:
        running.until(lambda target: target["state"] == "crashed" and "start" in target["can"], "the crash")
        yield running


def send(running: Running, raw: bytes, only_head: bool = False) -> Answer | None:
    """Writes bytes to a connection of their own and reads what is answered; None when the connection is just closed."""
    host, port = running.web.url.removeprefix("http://").split(":")
    data = b""
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        try:
            connection.sendall(raw)
            while b"\r\n\r\n" not in data or not only_head:
                piece = connection.recv(1 << 16)
                if not piece:
                    break
                data += piece
                if only_head and b"\r\n\r\n" in data:
                    break
        except ConnectionError:  # refused while we still wrote
            pass
    if not data:
        return None
    head, _, body = data.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (row.partition(":") for row in rest)}
    return Answer(int(first.split()[1]), headers, body)


def request(
    running: Running,
    method: bytes,
    target: bytes,
    headers: list[tuple[bytes, bytes]],
    body: bytes,
    host: bytes | None = None,
) -> bytes:
    """A request as bytes. What the headers do not say of host and length is added."""
    names = {name.lower() for name, _ in headers}
    own = [(b"Host", host or running.web.url.removeprefix("http://").encode())] if b"host" not in names else []
    if not names & {b"content-length", b"transfer-encoding"} and (body or method == b"POST"):
        own.append((b"Content-Length", str(len(body)).encode()))
    rows = [*own, *headers, (b"Connection", b"close")]
    return b"%s %s HTTP/1.1\r\n%s\r\n" % (method, target, b"".join(b"%s: %s\r\n" % row for row in rows)) + body


def check(answer: Answer | None, what: bytes, head: bool = False) -> None:
    """No server error; every error is a problem document, and tells nothing of the inside."""
    if answer is None:
        return
    path = what.split()[1].partition(b"?")[0].decode("latin-1") if len(what.split()) > 1 else ""
    allowed = answer.status < 500 or (answer.status == 503 and (path in AWAY or "retry-after" in answer.headers))
    assert allowed, f"{answer.status} for {what[:300]!r}: {answer.body[:500]!r}"
    assert b"Traceback" not in answer.body or answer.status < 400
    parser = answer.status == 400 and answer.headers.get("content-type") == "text/plain; charset=utf-8"
    if answer.status < 400 or (parser and (head or NOT_HTTP in answer.body)):
        return
    assert answer.headers.get("content-type") == "application/problem+json", f"{what[:300]!r}: {answer}"
    if not head:
        problem = json.loads(answer.body)
        assert problem["status"] == answer.status
        assert {"type", "title", "detail"} <= problem.keys()


NASTY = [
    b"", b"\x00", b"a\x00b", b"..", b"../../etc/passwd", b"..\\..\\x", b"/etc/passwd", b"~root", b"\xff\xfe", b"\xed\xa0\x80",
    b"\xc0\xae\xc0\xae/", "é".encode(), "\u202e\u2028".encode(), b"%", b"%zz", b"%00", b"%2e%2e%2f", b"'", b'"', b"`id`", b"$(id)",
    b"${jndi:ldap://x}", b"{{7*7}}", b"<script>", b"x" * 3000, b"9" * 400, b"-1", b"0", b"1e400", b"NaN", b"-0", b"18446744073709551616",
    b"null", b"true", b"[]", b"{}", b"; DROP TABLE run", b"' OR 1=1 --", b"\r\nX-Evil: 1", b"\n", b" ", b"server", b"20261201-102030-a1b2c3",
    b"good", b"1", b"127.0.0.1",
]  # fmt: skip
VALUE = st.one_of(
    st.sampled_from(NASTY),
    st.binary(max_size=60),
    st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace")),
)
"""A value for wherever a client puts one."""
NAMES = [b"count", b"before", b"from", b"attempt", b"other_attempt", b"evidence", b"raw", b"text", b"after", b"argv", b"gpu", b"idle",
         b"exit", b"engine_version", b"dry_run", b"rank", b"x"]  # fmt: skip
HEADERS = [b"Last-Event-ID", b"If-Match", b"If-None-Match", b"Idempotency-Key", b"Authorization", b"Content-Type", b"Accept", b"Accept-Encoding",
           b"Content-Encoding", b"Origin", b"Referer", b"Range", b"Cookie", b"X-Forwarded-For", b"X-Forwarded-Host", b"Forwarded", b"Expect",
           b"Upgrade", b"Sec-Fetch-Site", b"X-HTTP-Method-Override", b"Host", b"Content-Length", b"Transfer-Encoding", b"Te"]  # fmt: skip
KINDS = [b"application/json", b"application/json; charset=utf-16", b"application/json; charset=nonsense", b"text/plain", b"text/json",
         b"application/x-www-form-urlencoded", b"multipart/form-data; boundary=x", b"multipart/form-data", b"application/xml", b"\xff/\xff",
         b"application/octet-stream", b"application/gzip", b";", b""]  # fmt: skip
PACKED = gzip.compress(b"[2026-02-26 14:00:04] server_args=ServerArgs(x=1)\n" * 100)
BODIES = [
    b"", b"{", b"null", b"[]", b'"x"', b"1e400", b"NaN", b"-Infinity", b"\xff\xfe{\x00", b"\x00" * 100, b"{}" * 50, b"[" * 60_000,
    b'{"a":' * 20_000, b'{"remedy": "\\ud800"}', b'{"remedy": "\\u0000"}', b'{"remedy": null, "knobs": null}', b'{"knobs": {"\\ud800": 1}}',
    b'{"knobs": {"mem_fraction_static": 1e400}}', b'{"knobs": {"mem_fraction_static": ' + b"9" * 5000 + b"}}", b'{"again": "yes"}',
    b'{"dry_run": 1, "remedy": ["x"]}', b'{"knobs": {"page_size": 1e308}}', b'{"knobs": {"page_size": -1}}', b'{"a": 1, "a": 2}',
    b'{"remedy": "' + b"x" * 70_000 + b'"}', PACKED, PACKED[:40], PACKED[:-4] + b"\x00" * 4, PACKED * 2, PACKED + b"rest", b"\x1f\x8b",
    b"\x1f\x8b\x08\x00" + b"\xff" * 50,
]  # fmt: skip
BODY = st.one_of(st.sampled_from(BODIES), st.binary(max_size=200))
PAIRS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(HEADERS), VALUE),
        st.tuples(st.just(b"Content-Type"), st.sampled_from(KINDS)),
        st.tuples(
            st.sampled_from(HEADERS).flatmap(st.just),
            st.sampled_from([b'"x"', b"*", b'W/"x"', b'"none.0"', b"0123abcd-1"]),
        ),
    ),
    max_size=4,
)


def clean(value: bytes) -> bytes:
    """A value that ends no header line, so that the request stays one request."""
    return value.replace(b"\r", b"").replace(b"\n", b"")


def paths(running: Running) -> list[str]:
    """Every route, and some that are none."""
    known = list(running.get("/openapi.json")["paths"])
    return [
        *known,
        "/",
        "/docs",
        "/openapi.json",
        "/page/main.js",
        "/page/{name}",
        "/{x}",
        "/api/{x}",
        "/api/targets/{x}/{y}/{z}",
    ]


def in_path(value: bytes, quoted: bool) -> bytes:
    """A value as a segment of a path: quoted as a client does, or as it is where the line stays one."""
    return quote_from_bytes(value, safe="").encode() if quoted else re.sub(rb"[\x00-\x20\x7f]", b"", value)


def test_values_in_paths_and_queries(running: Running) -> None:
    deep = running.get("/api/targets/server/runs")["runs"][0]["id"].encode()
    good = {"target": b"server", "run": deep, "other": deep, "area": b"dynamo"}

    def on(path: str) -> None:
        names = re.findall(r"\{(\w+)\}", path)

        @BOUNDED
        @given(
            values=st.lists(VALUE, min_size=len(names), max_size=len(names)), keep=st.booleans(), quoted=st.booleans(),
            query=st.lists(st.tuples(st.sampled_from(NAMES), VALUE), max_size=4),
            method=st.sampled_from([b"GET", b"GET", b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"TRACE", b"FOO"]),
        )  # fmt: skip
        def ask(
            values: list[bytes], keep: bool, quoted: bool, query: list[tuple[bytes, bytes]], method: bytes
        ) -> None:  # fmt: skip
            if method == b"POST" and not values and not keep:
                method = b"GET"
            target = path.encode()
            for name, value in zip(names, values, strict=True):
                own = good.get(name, value) if keep else value
                target = target.replace(b"{%s}" % name.encode(), in_path(own, quoted))
            if query:
                target += b"?" + b"&".join(b"%s=%s" % (name, in_path(value, quoted)) for name, value in query)
            raw = request(running, method, target, [], b"")
            check(
                send(running, raw, only_head=b"/events" in target), raw, head=method == b"HEAD" or b"/events" in target
            )

        ask()

    for path in paths(running):
        on(path)


WHERE = [
    "/api/targets",
    "/api/targets/server",
    "/api/targets/server/events",
    "/api/targets/server/log",
    "/metrics",
    "/",
]


@pytest.mark.parametrize("path", WHERE)
def test_headers(running: Running, path: str) -> None:
    @BOUNDED
    @given(pairs=PAIRS, twice=st.booleans())
    @example(pairs=[(b"Last-Event-ID", b"0123abcd-99999999999999999999")], twice=False)
    @example(pairs=[(b"Host", b"localhost"), (b"Host", b"evil.example")], twice=False)
    @example(pairs=[(b"Content-Length", b"-1")], twice=False)
    @example(pairs=[(b"Authorization", b"Bearer " + b"x" * 60_000)], twice=False)
    def ask(pairs: list[tuple[bytes, bytes]], twice: bool) -> None:
        lengths = (b"content-length", b"transfer-encoding")  # a body that does not come is waited for
        headers = [
            (name, clean(value))
            for name, value in pairs
            if name.lower() not in lengths or value in (b"-1", b"NaN", b"")
        ]
        raw = request(running, b"GET", path.encode(), headers * (2 if twice else 1), b"")
        check(send(running, raw, only_head=path.endswith("/events")), raw, head=path.endswith("/events"))

    ask()


@pytest.mark.parametrize("path", ["start", "stop", "restart", "explain"])
def test_bodies(running: Running, path: str) -> None:
    target = b"/api/explain" if path == "explain" else f"/api/targets/server/{path}".encode()

    @BOUNDED
    @given(body=BODY, kind=st.sampled_from(KINDS), pairs=PAIRS)
    def ask(body: bytes, kind: bytes, pairs: list[tuple[bytes, bytes]]) -> None:
        headers = [
            (name, clean(value))
            for name, value in pairs
            if name not in (b"Content-Length", b"Transfer-Encoding", b"Content-Type")
        ]
        raw = request(running, b"POST", target, [(b"Content-Type", kind), *headers], body)
        check(send(running, raw), raw)

    ask()
    for body in BODIES:  # each of them as what it should be
        raw = request(running, b"POST", target, [(b"Content-Type", b"application/json")], body)
        check(send(running, raw), raw)
    assert running.get("/api/targets/server")["state"] in ("crashed", "starting", "ready", "stopped")


def test_keys_and_tags_that_are_none(running: Running) -> None:
    for value in NASTY:
        for name in (b"Idempotency-Key", b"If-Match"):
            raw = request(running, b"POST", b"/api/targets/server/restart", [(b"Content-Type", b"application/json"), (name, clean(value))],
                          b'{"remedy": "no/such#1"}')  # fmt: skip
            answer = send(running, raw)
            check(answer, raw)
            assert answer is None or answer.status in (400, 412, 422), raw
        raw = request(running, b"GET", b"/api/targets/server/events", [(b"Last-Event-ID", clean(value))], b"")
        answer = send(running, raw, only_head=True)
        check(answer, raw, head=True)
        assert answer is None or answer.status in (200, 400, 422), raw


@given(data=st.binary(max_size=300))
@BOUNDED
@example(data=b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")  # somebody speaks TLS
@example(data=b"GET / HTTP/9.9\r\n\r\n")
@example(data=b"GET /api/targets HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc")
@example(data=b"POST /api/explain HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n")
@example(data=b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
def test_bytes_that_are_no_request(running: Running, data: bytes) -> None:
    answer = send(running, data + b"\r\n\r\n", only_head=True)
    check(answer, data if len(data.split()) > 1 else b"? ?", head=True)


def test_it_still_serves(running: Running) -> None:
    assert running.get("/healthz")["status"] == "ok"
    assert running.web.failure is None
