"""Webhooks: who wants to know is told, signed and without secrets, and again when it was not taken."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from app import webhooks as module
from app.hub import Hub
from app.webhooks import Hook, Webhooks, signature
from tests.edges.servers import free_port, until


@dataclass
class Listener:
    """Takes requests; `answers` are its statuses, the last one for all that follow."""

    answers: Sequence[int] = (200,)
    url: str = ""
    taken: list[tuple[dict[str, str], bytes]] = field(default_factory=list)


@contextmanager
def listening(*answers: int, port: int = 0, wait: threading.Event | None = None) -> Iterator[Listener]:
    """A receiver; `wait`: it answers nothing until that is set."""
    listener = Listener(answers or (200,))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = listener.answers[min(len(listener.taken), len(listener.answers) - 1)]
            listener.taken.append(({name.lower(): value for name, value in self.headers.items()}, body))
            if wait is not None:
                wait.wait(20)
            self.send_response(status)
            if status == 302:
                self.send_header("location", listener.url + "/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    listener.url = f"http://127.0.0.1:{server.server_address[1]}/hook/secret-path"
    try:
        yield listener
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Named:
    name: str = "glm"
    hub: Hub = field(default_factory=Hub)


@contextmanager
def hooked(*hooks: Hook, folder: Path | None = None, seconds: float = 2.0) -> Iterator[tuple[Named, list[str]]]:
    target = Named()
    said: list[str] = []
    target.hub.status = {"run": "r1"}
    webhooks = Webhooks(hooks, [target], (0.01, 0.01), said.append, folder)
    webhooks.start()
    try:
        yield target, said
    finally:
        target.hub.close()
        webhooks.end(seconds)
        webhooks.stop()


def tell(target: Named, *titles: str) -> None:
    for title in titles:
        target.hub.publish("verdict", title, {"stage": "early", "rule": f"a/{title}", "title": title})


def titles(listener: Listener) -> list[str]:
    return [json.loads(body)["data"]["title"] for _, body in listener.taken]


def test_a_verdict_is_told_signed_and_without_secrets() -> None:
    with listening() as listener, hooked(Hook(listener.url, ["verdict", "ready", "end"], "shared")) as (target, _):
        evidence = "HF_TOKEN=hf_abcdefghijklmnopqrstuv"
        target.hub.publish("progress", "one", {})
        target.hub.publish(
            "verdict", "no memory", {"stage": "early", "rule": "a/b", "evidence": evidence, "attempt": 2}
        )
        target.hub.publish("verdict", "no memory", {"stage": "confirmed", "rule": "a/b"})
        target.hub.publish("state", "starting", {"state": "starting"})
        target.hub.publish("state", "ready", {"state": "ready"})
        target.hub.publish("end", "nothing is left", {"tried": "t"})
        until(lambda: len(listener.taken) == 3, "three requests")
        headers, body = listener.taken[0]
        event = json.loads(body)
        assert (event["event"], event["target"], event["run"], event["attempt"]) == ("verdict", "glm", "r1", 2)
        assert event["data"]["rule"] == "a/b"
        assert b"hf_abc" not in body
        assert headers["x-bringup-signature"] == signature("shared", headers["x-bringup-timestamp"], body)
        assert headers["x-bringup-delivery"] == event["delivery"]
        assert [json.loads(each)["event"] for _, each in listener.taken] == ["verdict", "ready", "end"]


def test_it_is_tried_again_and_then_said() -> None:
    with listening(503, 500, 200) as listener, hooked(Hook(listener.url, ["ready"])) as (target, said):
        target.hub.publish("state", "ready", {"state": "ready"})
        until(lambda: len(listener.taken) == 3, "the third try")
        assert len({headers["x-bringup-delivery"] for headers, _ in listener.taken}) == 1
        assert not said
    with listening(500) as listener, hooked(Hook(listener.url, ["ready"])) as (target, said):
        target.hub.publish("state", "ready", {"state": "ready"})
        until(lambda: said, "the word")
        assert len(listener.taken) == 3
        assert "ready of glm was not taken: it answers 500" in said[0]
        assert "secret-path" not in said[0]


def test_what_is_refused_or_sent_elsewhere_is_not_tried_again() -> None:
    for status in (403, 302):
        with listening(status) as listener, hooked(Hook(listener.url, ["ready"])) as (target, said):
            target.hub.publish("state", "ready", {"state": "ready"})
            until(lambda said=said: said, "the word")  # type: ignore[misc]
            assert len(listener.taken) == 1


def test_one_that_does_not_answer_keeps_nobody_waiting() -> None:
    dead = Hook(f"http://127.0.0.1:{free_port()}/x", ["ready"])
    with listening() as listener, hooked(dead, Hook(listener.url, ["ready"])) as (target, said):
        target.hub.publish("state", "ready", {"state": "ready"})
        until(lambda: listener.taken and said, "both")
        assert "Connection refused" in said[0]


def test_what_is_told_last_goes_out_before_the_end(tmp_path: Path) -> None:
    with listening() as listener:
        with hooked(Hook(listener.url, ["verdict", "end"]), folder=tmp_path) as (target, said):
            tell(target, "one", "two")
            target.hub.publish("end", "nothing is left", {"tried": "t", "title": "three"})
        assert [json.loads(body)["event"] for _, body in listener.taken] == ["verdict", "verdict", "end"]
        assert not said
        assert not list(tmp_path.glob("*/*"))


def test_one_that_does_not_answer_does_not_hold_the_end(tmp_path: Path) -> None:
    answer = threading.Event()
    with listening(wait=answer) as listener:
        with hooked(Hook(listener.url, ["verdict"]), folder=tmp_path, seconds=0.5) as (target, said):
            tell(target, "one", "two")
            until(lambda: listener.taken, "the first try")
            begun = time.monotonic()
        assert time.monotonic() - begun < 2
        assert said == [f"webhook {listener.url.rpartition('/hook')[0]}/…: 2 events could not be delivered: "
                        "kept and sent by the next bringup"]  # fmt: skip
        answer.set()


def test_what_could_not_be_delivered_is_sent_by_the_next_one_in_order_and_once(tmp_path: Path) -> None:
    port = free_port()
    hook = Hook(f"http://127.0.0.1:{port}/hook/secret-path", ["verdict"], "shared")
    with hooked(hook, folder=tmp_path, seconds=0.2) as (target, said):
        tell(target, "one", "two")
        until(lambda: said, "a word on the address")
    kept = sorted(tmp_path.glob("*/*.json"))
    assert len(kept) == 2
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)
    assert "secret-path" not in str(kept)
    with listening(port=port) as listener:
        for _ in range(2):  # the second one has nothing to send
            with hooked(hook, folder=tmp_path) as (target, said):
                if not listener.taken:
                    tell(target, "three")
                until(lambda: len(listener.taken) == 3, "all three")
        assert titles(listener) == ["one", "two", "three"]
        deliveries = [headers["x-bringup-delivery"] for headers, _ in listener.taken]
        assert len(set(deliveries)) == 3
        assert all(headers["x-bringup-delivery"] == json.loads(body)["delivery"] for headers, body in listener.taken)
        headers, body = listener.taken[0]
        assert headers["x-bringup-signature"] == signature("shared", headers["x-bringup-timestamp"], body)
    assert not list(tmp_path.glob("*/*"))


def test_one_that_comes_back_gets_everything_in_order() -> None:
    port = free_port()
    with hooked(Hook(f"http://127.0.0.1:{port}/x", ["verdict"])) as (target, said):
        tell(target, "one", "two", "three")
        until(lambda: said, "a word on the address")
        assert "Connection refused; 3 events wait until it answers" in said[0]
        with listening(port=port) as listener:
            until(lambda: len(listener.taken) == 3, "all three")
            assert titles(listener) == ["one", "two", "three"]
    assert len(said) == 1


def test_what_is_too_old_is_no_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = Hook(f"http://127.0.0.1:{free_port()}/x", ["verdict"])
    with hooked(hook, folder=tmp_path, seconds=0.1) as (target, said):
        tell(target, "one")
        until(lambda: said, "a word on the address")
    path = next(iter(tmp_path.glob("*/*.json")))
    event = json.loads(path.read_text())
    path.write_text(json.dumps({**event, "at": event["at"] - module.AGE - 1}))
    (path.parent / "00-cut-off.json").write_text('{"event": "verd')
    with hooked(hook, folder=tmp_path) as (_, said):
        until(lambda: len(said) == 2, "the word")
    assert "1 event from before wait" in said[0]
    assert "verdict of glm was not taken: it is older than 24 hours" in said[1]
    assert not list(tmp_path.glob("*/*"))


def test_two_hooks_of_one_address_keep_their_events_apart(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{(port := free_port())}/hook"
    hooks = Hook(url, ["verdict"], "one"), Hook(url, ["ready"], "two")
    with hooked(*hooks, folder=tmp_path, seconds=0.1) as (target, said):
        tell(target, "one")
        target.hub.publish("state", "ready", {"state": "ready"})
        until(lambda: len(list(tmp_path.glob("*/*.json"))) == 2, "both events")
    with listening(port=port) as listener, hooked(*hooks, folder=tmp_path) as (_, said):
        until(lambda: len(listener.taken) >= 2, "both events")
        until(lambda: not list(tmp_path.glob("*/*.json")), "the end")
    assert sorted(json.loads(body)["event"] for _, body in listener.taken) == ["ready", "verdict"]
    assert len(said) == 2
    for headers, body in listener.taken:
        secret = "one" if json.loads(body)["event"] == "verdict" else "two"
        assert headers["x-bringup-signature"] == signature(secret, headers["x-bringup-timestamp"], body)


KILLED = """
import os, sys
from pathlib import Path
sys.path.insert(0, "")
from tests.web.test_webhooks import Named, tell
from app.webhooks import Hook, Webhooks
target = Named()
webhooks = Webhooks([Hook(sys.argv[1], ["verdict"])], [target], (60.0,), print, Path(sys.argv[2]))
webhooks.start()
tell(target, "one", "two", "three")
while len(list(Path(sys.argv[2]).glob("*/*.json"))) < 3:
    pass
os.kill(os.getpid(), 9)
"""


def test_a_kill_loses_no_event(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/x"
    done = subprocess.run([sys.executable, "-c", KILLED, url, str(tmp_path)], timeout=60, capture_output=True)
    assert done.returncode == -9, done.stderr
    with listening(port=port) as listener, hooked(Hook(url, ["verdict"]), folder=tmp_path):
        until(lambda: len(listener.taken) == 3, "all three")
        assert titles(listener) == ["one", "two", "three"]


def test_a_folder_that_cannot_be_written_to_costs_only_the_keeping(tmp_path: Path) -> None:
    (tmp_path / "webhooks").write_text("in the way")
    with listening() as listener:
        with hooked(Hook(listener.url, ["verdict"]), folder=tmp_path / "webhooks") as (target, said):
            tell(target, "one")
            until(lambda: listener.taken, "the event")
        assert "not kept over the end" in said[0]
