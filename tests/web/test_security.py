"""One test for each thing that must not be possible from the network."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.web.access import Access, Rates, Token, from_environment, hashed, is_loopback, new_token
from tests.edges.replay import HEALTHY, STORY, engine, scene
from tests.web.harness import FAST, Running, serving

READ, CONTROL = new_token(), new_token()
TOKENS = (Token("ops", "control", hashed(CONTROL)), Token("screen", "read", hashed(READ)))


@pytest.fixture(scope="module")
def open_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("open")
    argv = [
        *engine(folder, [scene(HEALTHY)]),
        "--api-key",
        "sk-not-so-secret-key-123456",
        "--hf-token=hf_abcdefghijklmnopqrstu",
    ]
    with serving(folder, [argv], begin=False) as running:
        yield running


@pytest.fixture(scope="module")
def closed_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("closed")
    access = Access(tokens=TOKENS, loopback=False, rates=FAST, hosts=("gpu7.example",))
    with serving(folder, [engine(folder, [scene(HEALTHY)])], begin=False, access=access) as running:
        yield running


def ask(running: Running, method: str, path: str, token: str | None = None, **headers: str) -> httpx.Response:
    given = {"authorization": f"Bearer {token}"} if token else {}
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return running.client.request(method, path, headers={**given, **names})


def test_without_a_token_nothing_is_told(closed_service: Running) -> None:
    for path in ("/api/targets", "/api/targets/server", "/api/targets/server/events", "/api/rules", "/metrics"):
        answer = ask(closed_service, "GET", path)
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["content-type"] == "application/problem+json"
    assert ask(closed_service, "GET", "/healthz").status_code == 200


def test_a_wrong_token_is_no_token(closed_service: Running) -> None:
    for token in (READ + "x", READ[:-1], new_token(), "ä"):
        answer = closed_service.client.get("/api/targets", headers={b"authorization": f"Bearer {token}".encode()})
        assert answer.status_code == 401


def test_a_read_token_reads_and_controls_nothing(closed_service: Running) -> None:
    assert ask(closed_service, "GET", "/api/targets", READ).status_code == 200
    for path in ("start", "stop", "restart"):
        assert ask(closed_service, "POST", f"/api/targets/server/{path}", READ).status_code == 403
    assert ask(closed_service, "GET", "/api/audit", READ).status_code == 403
    assert ask(closed_service, "GET", "/api/audit", CONTROL).status_code == 200


def test_tokens_are_kept_as_hashes() -> None:
    access = Access(tokens=TOKENS, loopback=False)
    assert READ not in repr(access)
    assert access.who(f"Bearer {READ}") == ("screen", "read")
    assert access.who(READ) is None
    assert access.who(f"Basic {READ}") is None
    assert access.who(f"Bearer {TOKENS[0].digest}") is None, "a stolen hash opens nothing"


def test_short_tokens_are_refused() -> None:
    assert [
        token.role for token in from_environment({"BRINGUP_READ_TOKEN": READ, "BRINGUP_CONTROL_TOKEN": CONTROL})
    ] == ["read", "control"]
    with pytest.raises(ValueError, match=r"BRINGUP_READ_TOKEN has 6 characters, at least 20"):
        from_environment({"BRINGUP_READ_TOKEN": "secret"})


def test_guessing_is_slowed_down(tmp_path: Path) -> None:
    access = Access(tokens=TOKENS, loopback=False, rates=Rates(denied=(0.01, 3)))
    with serving(tmp_path, [engine(tmp_path, [scene(HEALTHY)])], begin=False, access=access) as running:
        statuses = [ask(running, "GET", "/api/targets", "wrong").status_code for _ in range(5)]
        assert statuses == [401, 401, 401, 429, 429]
        assert int(ask(running, "GET", "/api/targets", "wrong").headers["retry-after"]) > 1


def test_requests_have_a_rate(tmp_path: Path) -> None:
    access = Access(rates=Rates(read=(0.01, 4)))
    with serving(tmp_path, [engine(tmp_path, [scene(HEALTHY)])], begin=False, access=access) as running:
        assert [ask(running, "GET", "/api/targets").status_code for _ in range(6)] == [200] * 4 + [429] * 2
        assert ask(running, "GET", "/healthz").status_code == 200, "probes always get an answer"


def test_a_rebound_name_is_refused(open_service: Running, closed_service: Running) -> None:
    for host in ("evil.example", "evil.example:8420", "127.0.0.1.evil.example", "10.0.0.7", ""):
        assert ask(open_service, "GET", "/api/targets", host=host).status_code in (400, 403), host
    for host in ("localhost", "localhost:1", "127.0.0.1:8420", "[::1]:8420", "LOCALHOST."):
        assert ask(open_service, "GET", "/api/targets", host=host).status_code == 200, host
    assert ask(closed_service, "GET", "/api/targets", READ, host="gpu7.example:8420").status_code == 200
    assert ask(closed_service, "GET", "/api/targets", READ, host="10.0.0.7:8420").status_code == 200
    assert ask(closed_service, "GET", "/api/targets", READ, host="evil.example").status_code == 403


def test_a_page_of_another_site_controls_nothing(open_service: Running) -> None:
    path = "/api/targets/server/start"
    for headers in ({"origin": "http://evil.example"}, {"origin": "null"}, {"sec_fetch_site": "cross-site"}):
        answer = ask(open_service, "POST", path, **headers)
        assert answer.status_code == 403, headers
    for path in ("/api/explain", "/api/targets/server/restart"):
        assert ask(open_service, "POST", path, origin="http://evil.example").status_code == 403
    own = open_service.url
    assert ask(open_service, "POST", "/api/targets/server/stop", origin=own).status_code == 409, "same origin: asked"


def test_no_other_origin_may_read(open_service: Running) -> None:
    answer = ask(open_service, "GET", "/api/targets", origin="http://evil.example")
    assert not [name for name in answer.headers if name.startswith("access-control")]
    answer = ask(
        open_service, "OPTIONS", "/api/targets", origin="http://evil.example", access_control_request_method="POST"
    )
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


def test_a_form_is_no_request(open_service: Running) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        answer = open_service.client.post(
            "/api/targets/server/start", content=b'{"again": true}', headers={"content-type": kind}
        )
        assert answer.status_code in (415, 422), kind
    assert open_service.get("/api/targets/server")["state"] == "idle"


def test_bodies_have_a_limit(open_service: Running) -> None:
    big = {"remedy": "x" * 100_000}
    assert open_service.client.post("/api/targets/server/restart", json=big).status_code == 413

    def pieces() -> Iterator[bytes]:
        for _ in range(20):
            yield b"x" * 10_000

    headers = {"content-type": "application/json"}
    answer = open_service.client.post("/api/targets/server/restart", content=pieces(), headers=headers)
    assert answer.status_code == 413


@pytest.mark.parametrize("body", [
    {"argv": ["sh", "-c", "id"]}, {"knobs": {"model_path": "/etc/passwd"}}, {"knobs": {"chat_template": "x"}},
    {"knobs": {"trust_remote_code": "enabled"}}, {"knobs": {"host": "0.0.0.0"}}, {"knobs": {"port": 1}},
    {"knobs": {"mem_fraction_static": "0.5 --x"}}, {"knobs": {"attention_backend": "--trust-remote-code"}},
    {"knobs": {"attention_backend": "fa3; id"}}, {"knobs": {"mem_fraction_static": 7}}, {"knobs": {"no_such_knob": 1}},
    {"knobs": {"mem_fraction_static": ["0.5"]}}, {"knobs": {"--x": 1}}, {"env": {"LD_PRELOAD": "x"}},
    {"remedy": "no/such#1"}, {"remedy": "$(id)"}, {"knobs": {"json_model_override_args": "{}"}},
    {"knobs": {"mem_fraction_static": 1e400}}, {"remedy": "a", "knobs": {"page_size": 1}},
])  # fmt: skip
def test_nothing_from_the_network_becomes_a_word_of_a_command_line(open_service: Running, body: object) -> None:
    text = json.dumps(body).replace("Infinity", "1e400")
    answer = open_service.client.post(
        "/api/targets/server/restart", content=text, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 422, answer.text
    assert answer.json()["detail"]
    assert open_service.get("/api/targets/server")["state"] == "idle"


def test_paths_lead_nowhere_else(open_service: Running) -> None:
    for path in (
        "/api/targets/..%2f..%2fetc%2fpasswd", "/api/rules/..%2f../x", "/api/rules/dynamo/..%2f..%2fx", "/%2e%2e/etc/x",
        "/api/targets/server/../../../etc/passwd", "/api/rules/a%00b/c",
    ):  # fmt: skip
        assert open_service.client.get(path).status_code in (400, 404), path


def test_secrets_are_masked_wherever_they_would_leave(tmp_path: Path) -> None:
    key, token, url = "sk-abcdefghijklmnop1234", "hf_abcdefghijklmnopqrstuv", "https://me:pass-word-9@hub.example/x"
    log = tmp_path / "secret.log"
    line = f"server_args=ServerArgs(model_path='m', api_key='{key}', hf_token='{token}') from {url}\n"
    log.write_text(line + STORY.read_text())
    argv = [
        *engine(tmp_path, [scene(log, exit=-9)], "--enable-piecewise-cuda-graph"),
        "--api-key",
        key,
        "--download-dir",
        url,
        "--admin-api-key",
        "plain-word",
    ]
    with serving(tmp_path, [argv], begin=False) as running:
        texts = [running.client.post("/api/targets/server/start").text]
        target = running.until(lambda target: target["state"] == "crashed" and target["remedies"], "the crash")
        texts += [json.dumps(target), running.client.get("/metrics").text, running.client.get("/api/audit").text]
        body = {"remedy": target["remedies"][0]["name"], "dry_run": True}
        texts += [running.client.post("/api/targets/server/restart", json=body).text]
        texts += [running.client.post("/api/explain", content=log.read_bytes(), params={"argv": " ".join(argv)}).text]
        with running.client.stream("GET", "/api/targets/server/events") as answer:
            texts.append(next(answer.iter_text()))
        for text in texts:
            for secret in (key, token, "pass-word-9", "plain-word"):
                assert secret not in text, text[max(0, text.find(secret) - 200) :][:400]
        assert "***" in json.dumps(target["argv"])


def test_who_asked_is_written_down(closed_service: Running) -> None:
    ask(closed_service, "POST", "/api/targets/server/stop", CONTROL)
    row = ask(closed_service, "GET", "/api/audit?count=1", CONTROL).json()["audit"][0]
    assert (row["who"], row["address"], row["action"], row["status"]) == ("ops", "127.0.0.1", "stop", 409)
    path = closed_service.service.root / "audit.jsonl"
    assert path.stat().st_mode & 0o077 == 0
    assert CONTROL not in path.read_text()


def test_addresses_of_loopback() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "10.0.0.1", "gpu7")] == [
        True, True, True, False, False, False, False,
    ]  # fmt: skip


def test_no_shell_is_between(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    argv = [sys.executable, "-S", "-c", "pass", f"; touch {marker}", f"$(touch {marker})"]
    with serving(tmp_path, [argv], begin=False) as running:
        running.post("/api/targets/server/start")
        running.until(lambda target: target["state"] in ("crashed", "stopped"), "the end")
    assert not marker.exists()
