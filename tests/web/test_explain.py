"""A log as a body, and the rules."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.web.access import Access
from tests.edges.replay import STORY, engine, scene
from tests.edges.servers import until
from tests.web.harness import FAST, Running, serving

CAUSE = "dynamo/flashinfer-fp4-jit-under-dynamo"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("explain")
    access = Access(rates=FAST, explain=4 << 20, explain_seconds=20)
    with serving(folder, [engine(folder, [scene(STORY)])], begin=False, access=access) as running:
        yield running


def test_a_log_is_explained_as_it_comes_and_not_kept(running: Running) -> None:
    data = STORY.read_bytes()

    def pieces() -> Iterator[bytes]:
        for place in range(0, len(data), 1000):
            yield data[place : place + 1000]

    before = sorted(running.service.root.rglob("*"))
    report = running.client.post("/api/explain", content=pieces()).json()
    assert report["verdicts"][0]["rule"] == CAUSE
    assert report["schema"] == 1
    assert running.client.post("/api/explain", content=gzip.compress(data)).json() == report
    assert sorted(running.service.root.rglob("*")) == before
    told = running.client.post("/api/explain", content=data, params={"engine_version": "0.5.20", "idle": 3}).json()
    assert told["verdicts"][0]["rule"] == CAUSE


def test_a_log_that_was_copied_newest_first_is_restored(running: Running) -> None:
    lines = STORY.read_bytes().splitlines(keepends=True)
    turned = running.client.post("/api/explain", content=b"".join(reversed(lines))).json()
    assert turned["verdicts"][0]["rule"] == CAUSE
    assert turned["restored"] == ["newest first: read from the bottom up"]
    proof = turned["verdicts"][0]["evidence"][-1]
    assert lines[-proof["line"]].decode().rstrip().endswith(proof["text"].strip())


def test_a_log_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    access = Access(rates=FAST, explain_seconds=0.3)
    with serving(tmp_path, [engine(tmp_path, [scene(STORY)])], begin=False, access=access) as slow:
        address = (slow.client.base_url.host, slow.client.base_url.port)
        with socket.create_connection(address, 10) as client:
            head = f"POST /api/explain HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nContent-Length: 9\r\n\r\nabc"
            client.sendall(head.encode())
            assert b" 408 " in client.recv(4096).split(b"\r\n")[0]


def test_a_log_has_a_limit_also_unpacked(running: Running) -> None:
    assert running.client.post("/api/explain", content=b"x" * (5 << 20)).status_code == 413
    assert running.client.post("/api/explain", content=gzip.compress(b"x" * (5 << 20))).status_code == 413
    broken = running.client.post("/api/explain", content=gzip.compress(b"x" * 1000)[:-20] + b"y" * 40)
    assert broken.status_code == 422
    assert running.client.post("/api/explain", content=b"").json()["state"] == "starting"


def test_who_goes_away_takes_nothing_along(running: Running) -> None:
    host, port = running.url.removeprefix("http://").split(":")
    for _ in range(3):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"POST /api/explain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nabc")

    def answered() -> httpx.Response | None:
        answer = running.client.post("/api/explain", content=STORY.read_bytes())
        return None if answer.status_code == 503 else answer  # until it is seen that they went

    assert until(answered, "an answer").json()["verdicts"][0]["rule"] == CAUSE


def test_rules_are_listed_and_shown(running: Running) -> None:
    rules = running.get("/api/rules")["rules"]
    assert len(rules) > 100
    rule = running.get(f"/api/rules/{CAUSE}")
    assert rule["page"].startswith(f"# {rule['title']}")
    assert rule["remedies"][0]["set"]
    assert running.get("/api/rules/dynamo/nothing", 404)["detail"] == "there is no rule dynamo/nothing"
    found = running.client.get("/api/rules", params={"search": "no kernel image"}).json()["rules"]
    assert "kernels-by-architecture/torch-wheel-lacks-arch" in [each["id"] for each in found]
    assert running.client.get("/api/rules", params={"search": "xyzzy"}).json() == {"rules": []}


def test_the_shipped_file_limit_is_large(tmp_path: Path) -> None:
    assert Access().explain == 256 << 20
