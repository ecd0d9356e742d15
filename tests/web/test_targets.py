"""What can be asked of targets, and when it is refused."""

from __future__ import annotations

import html
import json
import re
import shlex
from pathlib import Path

import pytest

from app.history import Entry, FileHistory, keys
from app.hub import Hub
from app.ladder import Launch
from app.service import Watched
from app.supervisor import Settings
from app.turning import Refusal, last_good
from app.watcher import Watcher
from app.web.reference import example, lines_to_try
from tests.edges.replay import HEALTHY, STORY, base, engine, scene
from tests.edges.servers import free_port
from tests.web.harness import serving

PIECEWISE = "--enable-piecewise-cuda-graph"
CAUSE = "dynamo/flashinfer-fp4-jit-under-dynamo"


def test_a_server_is_started_restarted_by_a_knob_and_stopped(tmp_path: Path) -> None:
    slow = scene(HEALTHY, health=True, lacks=["--mem-fraction-static"], deaf=True)  # it takes a while to end
    argv = engine(tmp_path, [slow, scene(HEALTHY, health=True)], port=free_port())
    with serving(tmp_path, [argv], begin=False) as running:
        running.post("/api/targets/server/stop", status=409)
        first = running.post("/api/targets/server/start")
        running.until(lambda target: target["state"] == "ready", "ready")
        running.post("/api/targets/server/start", status=409)
        assert running.get("/startupz") == {"status": "ok"}

        knobs = {row["name"]: row for row in running.get("/api/targets/server/knobs")["knobs"]}
        assert knobs["mem_fraction_static"]["maximum"] == 1
        assert not {"port", "host", "trust_remote_code", "json_model_override_args"} & knobs.keys()
        body = {"knobs": {"mem_fraction_static": 0.8, "cuda_graph": "disabled"}}
        planned = running.post("/api/targets/server/restart", body)
        assert planned["diff"] == ["+--mem-fraction-static 0.8", "+--disable-cuda-graph"]
        assert planned["run"] != first["run"]
        running.post("/api/targets/server/restart", {"knobs": {"page_size": 16}}, status=409)
        running.until(lambda target: target["state"] == "ready" and target["run"] == planned["run"], "ready again")
        wrong = running.post("/api/targets/server/restart", {"knobs": {"mem_fraction_static": 2, "nope": 1}}, 422)
        assert wrong["reasons"] == ["mem_fraction_static must be at most 1, not 2", "'nope' is no knob of sglang"]
        same = running.post("/api/targets/server/restart", {"knobs": {"mem_fraction_static": 0.8}}, 422)
        assert "already in force" in same["detail"]
        assert running.post("/api/targets/server/stop") == {"stopping": True}
        running.until(lambda target: target["state"] == "stopped", "the stop")
        again = running.post("/api/targets/server/restart", status=202)
        assert "--disable-cuda-graph" in again["argv"], "the launch that ran last"


def test_the_launch_that_failed_is_not_repeated_unless_confirmed(tmp_path: Path) -> None:
    crash = scene(STORY, needs=[PIECEWISE], exit=-9)
    argv = engine(tmp_path, [crash, scene(HEALTHY)], PIECEWISE)
    with serving(tmp_path, [argv]) as running:
        running.until(lambda target: target["state"] == "crashed" and "start" in target["can"], "the crash")
        refused = running.post("/api/targets/server/restart", status=409)
        assert refused["rule"] == CAUSE
        assert refused["remedies"][0] == f"{CAUSE}#1"
        running.post("/api/targets/server/start", status=409)
        assert running.client.get("/readyz").json()["targets"] == ["server"]
        assert running.client.get("/startupz").status_code == 503
        planned = running.post("/api/targets/server/restart", {"again": True})
        running.until(lambda target: target["run"] == planned["run"] and target["state"] == "crashed", "the same end")


def test_two_people_do_not_restart_twice(tmp_path: Path) -> None:
    argv = engine(tmp_path, [scene(HEALTHY, health=True)], port=free_port())
    with serving(tmp_path, [argv]) as running:
        target = running.until(lambda target: target["state"] == "ready", "ready")
        stale = {"if-match": '"20200101-000000-abcdef.1"'}
        body = {"knobs": {"page_size": 16}}
        problem = running.post("/api/targets/server/restart", body, 412, headers=stale)
        assert problem["tag"] == target["tag"]
        key = {"idempotency-key": "a1", "if-match": f'"{target["tag"]}"'}
        first = running.client.post("/api/targets/server/restart", json=body, headers=key)
        second = running.client.post("/api/targets/server/restart", json=body, headers=key)
        assert (first.status_code, second.status_code) == (202, 202)
        assert first.json() == second.json()
        assert "idempotent-replayed" in second.headers
        running.post("/api/targets/server/restart", {"knobs": {"page_size": 32}}, 422, headers=key)
        running.until(lambda target: target["run"] == first.json()["run"] and target["state"] == "ready", "ready")
        running.post("/api/targets/server/stop", status=412, headers={"if-match": f'"{target["tag"]}"'})
        assert len(list((tmp_path / "state").rglob("attempt-1.log"))) == 2


def test_back_to_the_last_good_launch(tmp_path: Path) -> None:
    crash = scene(STORY, needs=[PIECEWISE], exit=-9)
    argv = engine(tmp_path, [crash, scene(HEALTHY, health=True)], PIECEWISE, port=free_port())
    path, body = "/api/targets/server/restart", {"last_good": True}
    with serving(tmp_path, [argv]) as running:
        running.until(lambda target: target["state"] == "crashed" and "start" in target["can"], "the crash")
        problem = running.post(path, body, 409)
        assert problem["detail"] == "no other launch of this model has become ready here before"
        assert running.get("/api/targets/server/last-good") == {"last_good": None, "reason": problem["detail"]}
        running.post(path, {**body, "remedy": f"{CAUSE}#1"}, 422)
        running.post(path, {**body, "knobs": {"page_size": 16}}, 422)
        running.post(path, {"remedy": f"{CAUSE}#1"})
        good = running.until(lambda target: target["state"] == "ready", "ready")
        running.post(path, body, 409)  # it is the one that runs

        running.post(path, {"knobs": {"mem_fraction_static": 0.8}})
        now = running.until(lambda target: target["state"] == "ready" and target["run"] != good["run"], "ready again")
        shown = running.post(path, {**body, "dry_run": True}, 200)
        assert (shown["diff"], shown["done"], shown["argv"]) == (["---mem-fraction-static 0.8"], False, good["argv"])
        assert running.get("/api/targets/server/last-good")["last_good"] == shown
        running.post(path, body, 412, headers={"if-match": f'"{good["tag"]}"'})
        once = {"idempotency-key": "back", "if-match": f'"{now["tag"]}"'}
        planned = running.post(path, body, headers=once)
        assert running.post(path, body, headers=once) == planned
        back = running.until(
            lambda target: target["run"] == planned["run"] and target["state"] == "ready", "it is back"
        )
        assert back["argv"] == good["argv"]
        assert running.get("/api/audit")["audit"][0]["asked"]["last_good"] is True


def test_a_last_good_launch_is_of_this_target_and_keeps_its_secrets(tmp_path: Path) -> None:
    port = free_port()
    history = FileHistory(tmp_path / "history.jsonl")
    words = ("python", "-m", "sglang.launch_server", "--model-path", "/m", "--port")
    origin = Launch((*words, str(port), "--tp", "8"), (("HF_TOKEN", "hidden"),))

    def served(argv: tuple[str, ...], env: dict[str, str | None], ended: float) -> None:
        key, model = keys(argv)
        history.add(Entry("r", 1, key, model, argv, env, "", ended - 9, ended, "ready"))

    with pytest.raises(Refusal, match="no other launch"):
        last_good(history, origin, origin)
    served((*words, str(port), "--tp", "4"), {"HF_TOKEN": "***", "A": "1"}, 1000)
    served((*words, str(port + 1), "--tp", "2"), {}, 2000)  # the same model, served by another target
    served((*words, str(port), "--tp", "8"), {"HF_TOKEN": "***"}, 3000)  # what runs now
    rung = last_good(history, origin, origin)
    assert rung.launch == Launch((*words, str(port), "--tp", "4"), (("A", "1"), ("HF_TOKEN", "hidden")))
    assert rung.diff == ("---tp 8", "+--tp 4", "+A=1")
    without = Launch(origin.argv)
    with pytest.raises(Refusal, match="HF_TOKEN of the last good launch is a secret"):
        last_good(history, without, Launch((*origin.argv, "--x")))


def test_a_remedy_is_chosen_while_the_supervisor_asks(tmp_path: Path) -> None:
    crash = scene(STORY, needs=[PIECEWISE], exit=-9)
    argv = engine(tmp_path, [crash, scene(HEALTHY, health=True)], PIECEWISE, port=free_port())
    with serving(tmp_path, [argv], Settings(mode="ask", attended=True, release="0.5.9")) as running:
        target = running.until(lambda target: target["offers"], "the offer")
        planned = running.post("/api/targets/server/restart", {"remedy": target["offers"][0]["name"]})
        assert (planned["run"], planned["attempt"]) == (target["run"], 2)
        running.until(lambda target: target["state"] == "ready" and target["attempt"] == 2, "ready")


def test_what_cannot_be_started_says_so_and_may_be_tried_again(tmp_path: Path) -> None:
    with serving(tmp_path, [["/no/such/program"]]) as running:
        target = running.until(lambda target: target.get("trouble"), "the refusal")
        assert "/no/such/program" in target["trouble"]
        assert target["can"] == ["start", "restart"]


def test_a_watched_log_is_only_asked(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(STORY.read_bytes())
    watched = Watched("server", Watcher(base(), Hub(), log, Settings()), tmp_path / "state")
    with serving(tmp_path, [["true"]], begin=False) as running:
        running.service.targets["other"] = watched
        target = running.get("/api/targets/other")
        assert (target["kind"], target["can"]) == ("log", [])
        for action in ("start", "stop", "restart"):
            problem = running.post(f"/api/targets/other/{action}", status=409)
            assert "not ours" in problem["detail"]


def test_a_target_that_is_not_there(tmp_path: Path) -> None:
    with serving(tmp_path, [["true"], ["true"]], begin=False) as running:
        problem = running.get("/api/targets/x", 404)
        assert problem["detail"] == "there is no target 'x'; there are: t0, t1"
        assert [target["name"] for target in running.get("/api/targets")["targets"]] == ["t0", "t1"]
        assert running.get("/api/nothing", 404)["status"] == 404
        assert running.client.put("/api/targets").status_code == 405


def test_the_reference_has_a_line_to_try_for_every_route(tmp_path: Path) -> None:
    with serving(tmp_path, [["/no/such/engine"]], begin=False) as running:
        document = running.get("/openapi.json")
        page = running.client.get("/docs").text
        assert "<script" not in page
        assert not re.findall(r"""(?:src|href)=['"]?(?:https?:)?//""", page), "nothing from elsewhere"
        lines = [html.unescape(line) for line in re.findall(r"aria-label='A line to try'>(.*?)</pre>", page, re.DOTALL)]
        assert {line.split()[0] for line in lines} == {"curl"}
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                assert f"<b>{method.upper()}</b> {path}" in page
                (*_, sample) = lines_to_try(path, method, operation, document, running.url)
                assert sample in lines
                words = shlex.split(sample)
                url = next(word for word in words if word.startswith(running.url))
                if path.endswith("/events") or "@server.log" in words:
                    continue
                if "--json" in words:
                    answer = running.client.post(url, json=json.loads(words[words.index("--json") + 1]))
                else:
                    answer = running.client.request(method.upper(), url)
                assert str(answer.status_code) in operation["responses"], sample
                assert answer.status_code not in (400, 422, 500), f"{sample}: {answer.text}"


def test_examples_come_from_the_schemas() -> None:
    document = {
        "components": {"schemas": {"A": {"properties": {"b": {"anyOf": [{"type": "null"}, {"type": "integer"}]}}}}}
    }
    assert example({"$ref": "#/components/schemas/A"}, document) == {"b": 1}
    assert example({"type": "array", "items": {"type": "string", "examples": ["x"]}}, document) == ["x"]
    assert example({"type": "object", "default": None}, document) is None
