"""Webhooks: who wants to know is told, signed and without secrets, and again when it was not taken."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

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
def listening(*answers: int) -> Iterator[Listener]:
    listener = Listener(answers or (200,))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = listener.answers[min(len(listener.taken), len(listener.answers) - 1)]
            listener.taken.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(status)
            if status == 302:
                self.send_header("location", listener.url + "/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
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
def hooked(*hooks: Hook) -> Iterator[tuple[Named, list[str]]]:
    target = Named()
    said: list[str] = []
    target.hub.status = {"run": "r1"}
    webhooks = Webhooks(hooks, [target], (0.01, 0.01), said.append)
    webhooks.start()
    try:
        yield target, said
    finally:
        target.hub.close()
        webhooks.stop()


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
