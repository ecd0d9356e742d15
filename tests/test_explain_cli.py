"""`bringup explain` as people and programs call it: real processes, real files."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

FIXTURES = Path(__file__).parent.parent / "fixtures"
STORY = FIXTURES / "founding-story" / "server.log"
RULE = "dynamo/flashinfer-fp4-jit-under-dynamo"


def bringup(*argv: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "app.cli", *argv], input=stdin, capture_output=True, timeout=60,
        cwd=Path(__file__).parent.parent, env={**os.environ, **(env or {})}, check=False,
    )  # fmt: skip


def answers(*argv: str, stdin: bytes = b"") -> list[dict]:
    done = bringup("explain", "--format", "json", *argv, stdin=stdin)
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


CONTRACT = {
    "type": "object",
    "required": ["schema", "source", "engine", "state", "phase", "verdicts", "exception", "fingerprint"],
    "properties": {
        "schema": {"const": 1},
        "engine": {"type": "object", "required": ["name", "version"]},
        "state": {"enum": ["starting", "ready", "crashed", "stalled", "stopped"]},
        "phase": {"type": ["object", "null"], "required": ["id", "title", "done", "total"]},
        "exception": {"type": ["object", "null"], "required": ["type", "message", "raised_in", "line"]},
        "fingerprint": {"type": ["string", "null"]},
        "verdicts": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["rule", "role", "title", "explanation", "complete", "ranks", "evidence", "remedies"],
                "properties": {
                    "role": {"enum": ["cause", "symptom"]},
                    "evidence": {
                        "type": "array",
                        "minItems": 1,
                        "items": {"required": ["line", "text", "why"], "properties": {"line": {"minimum": 1}}},
                    },
                    "remedies": {
                        "type": "array",
                        "items": {
                            "required": ["title", "change", "steps", "cost", "safe", "proof", "blocked"],
                            "properties": {
                                "proof": {"enum": ["reproduced", "reported", "suggested"]},
                                "change": {"type": ["object", "null"], "required": ["set", "argv", "env", "diff"]},
                            },
                        },
                    },
                },
            },
        },
    },
}


def test_the_contract_holds_for_every_kind_of_log() -> None:
    names = [
        "founding-story",
        "real-port-in-use",
        "real-slim-healthy-0.5.23",
        "sglang-3752",
        "vllm-28110",
        "py-unknown",
    ]
    files = [str(FIXTURES / name / "server.log") for name in names if (FIXTURES / name).is_dir()]
    for answer in answers(*files):
        jsonschema.validate(answer, CONTRACT)


def test_files_are_answered_one_a_line_in_the_order_given(tmp_path: Path) -> None:
    packed = tmp_path / "story.log.gz"
    packed.write_bytes(gzip.compress(STORY.read_bytes()[:9000]) + gzip.compress(STORY.read_bytes()[9000:]))
    healthy = FIXTURES / "real-slim-healthy-0.5.23" / "server.log"
    got = answers(str(packed), str(healthy), "-", stdin=STORY.read_bytes())
    assert [item["source"] for item in got] == [str(packed), str(healthy), "standard input"]
    assert [got[place]["verdicts"][0]["rule"] for place in (0, 2)] == [RULE, RULE]
    assert not any(verdict["role"] == "cause" for verdict in got[1]["verdicts"])


@pytest.mark.parametrize(
    ("release", "gone", "added"),
    [
        ("0.5.7", ["--enable-piecewise-cuda-graph"], []),
        ("0.5.9", ["--enable-piecewise-cuda-graph"], []),
        ("0.5.12", ["--enable-piecewise-cuda-graph"], ["--disable-piecewise-cuda-graph"]),
        ("0.5.23", [], ["--cuda-graph-backend-prefill disabled"]),
    ],
)
@pytest.mark.parametrize("name", ["founding-story", "founding-story-tail", "founding-story-one-line"])
def test_the_founding_story_gets_the_right_remedy_for_each_release(
    name: str, release: str, gone: list[str], added: list[str]
) -> None:
    argv = "python -m sglang.launch_server --model-path /m --tp 4" + "".join(f" {flag}" for flag in gone)
    (got,) = answers(str(FIXTURES / name / "server.log"), "--engine-version", release, "--argv", argv)
    verdict = got["verdicts"][0]
    assert (verdict["rule"], verdict["complete"]) == (RULE, name == "founding-story")
    remedy = verdict["remedies"][0]
    assert remedy["blocked"] is None
    assert remedy["change"]["diff"] == [f"-{flag}" for flag in gone] + [f"+{flag}" for flag in added]
    words = " ".join(remedy["change"]["argv"])
    assert all(flag not in words.split() for flag in gone)
    assert all(flag in words for flag in added)


def test_exit_status_with_exit_code() -> None:
    assert bringup("explain", "--exit-code", str(STORY)).returncode == 1
    assert bringup("explain", str(STORY)).returncode == 0
    assert bringup("explain", "--exit-code", str(FIXTURES / "real-slim-healthy-0.5.23" / "server.log")).returncode == 0


def test_what_cannot_be_read_is_told_and_the_rest_is_done(tmp_path: Path) -> None:
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(STORY.read_bytes())[:-400])
    done = bringup("explain", "--format", "json", str(tmp_path / "missing.log"), str(tmp_path), str(cut), str(STORY))
    assert done.returncode == 2
    errors = done.stderr.decode()
    assert "missing.log: no such file" in errors
    assert f"{tmp_path}: is a directory; name the log file in it" in errors
    assert "the gzip data ends too early; what came before it was read" in errors
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_told(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("x")
    log.chmod(0)
    done = bringup("explain", str(log))
    assert done.returncode == 2
    assert b"permission denied; make it readable for" in done.stderr


def test_empty_and_binary_files_say_so(tmp_path: Path) -> None:
    empty = tmp_path / "empty.log"
    empty.touch()
    binary = tmp_path / "binary.log"
    binary.write_bytes(bytes(range(256)) * 400)
    done = bringup("explain", str(empty), str(binary))
    assert done.returncode == 0
    assert "The log is empty." in done.stdout.decode()
    assert "Nothing has failed in this log so far." in done.stdout.decode()


def test_usage_errors() -> None:
    assert bringup("explain").returncode == 2
    done = bringup("explain", "--rules", "/nowhere", str(STORY))
    assert done.returncode == 2
    assert b"no such rules directory" in done.stderr


def test_a_broken_rule_file_is_named_and_the_others_are_used(tmp_path: Path) -> None:
    area = tmp_path / "rules" / "mine"
    area.mkdir(parents=True)
    (area / "broken.yaml").write_text("id: mine/broken\ntitle: x\nwhen:\n  - text: '(unclosed'\nbogus: 1\n")
    done = bringup("explain", "--rules", str(tmp_path / "rules"), str(STORY))
    assert done.returncode == 0
    errors = done.stderr.decode()
    assert "broken.yaml:4: when.0.text: not a regular expression" in errors
    assert "broken.yaml:5: bogus: unknown key 'bogus'" in errors
    assert RULE in done.stdout.decode()


def test_a_rule_can_be_switched_off_and_replaced(tmp_path: Path) -> None:
    done = bringup("explain", "--format", "json", "--disable", RULE, str(STORY))
    assert json.loads(done.stdout)["verdicts"][0]["rule"] != RULE
    area = tmp_path / "dynamo"
    area.mkdir()
    (area / "flashinfer-fp4-jit-under-dynamo.yaml").write_text(
        f"id: {RULE}\ntitle: ours\nstatus: draft\nrole: cause\nwhen:\n  - text: 'gen_fp4_quantization_module'\n"
        "cause: ours\nremedies: [{title: a, do: b}]\nnear_misses: [{log: x, because: y}]\n"
        "supersedes: [dynamo/dynamo-skipped-function-unspecified]\n"
    )
    done = bringup("explain", "--format", "json", "--rules", str(tmp_path), str(STORY))
    titles = [verdict["title"] for verdict in json.loads(done.stdout)["verdicts"]]
    assert "ours" in titles


def test_secrets_do_not_leave(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text(
        "python -m sglang.launch_server --model-path /m --api-key sk-verysecret0123456789\n"
        "ValueError: cannot reach https://user:hunter2hunter2@hub.example/m with token hf_abcdefghijklmnopqrstuvwx\n"
    )
    for style in ("text", "json", "markdown"):
        out = bringup("explain", "--format", style, str(log)).stdout.decode()
        assert "verysecret" not in out
        assert "hunter2" not in out
        assert "hf_abcdef" not in out


def test_the_answer_does_not_depend_on_the_order_of_sets() -> None:
    files = [str(FIXTURES / name / "server.log") for name in ("flymyai-47", "pytorch-167244", "founding-story")]
    told = {
        bringup("explain", "--format", "json", *files, env={"PYTHONHASHSEED": seed}).stdout
        for seed in ("0", "1", "2", "3", "4")
    }
    assert len(told) == 1


def test_the_cache_is_used_and_a_foreign_one_is_not(tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    first = bringup("explain", str(STORY), env=env)
    (cache,) = (tmp_path / "bringup").glob("rules-*.pickle")
    assert cache.stat().st_mode & 0o077 == 0
    assert bringup("explain", str(STORY), env=env).stdout == first.stdout
    cache.write_bytes(b"not a pickle")
    assert bringup("explain", str(STORY), env=env).stdout == first.stdout
    cache.chmod(0o666)
    assert bringup("explain", str(STORY), env=env).stdout == first.stdout


def test_explain_imports_neither_yaml_nor_the_service(tmp_path: Path) -> None:
    code = (
        "import sys; from app.cli import main\n"
        "try: main(['explain', sys.argv[1]])\nexcept SystemExit: pass\n"
        "bad = [m for m in ('yaml', 'pydantic', 'fastapi', 'sqlalchemy', 'rich', 'watchdog', 'psutil', 'asyncio', 'app.cli.live') if m in sys.modules]\n"
        "sys.exit(repr(bad) if bad else 0)\n"
    )
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    root = Path(__file__).parent.parent
    subprocess.run([sys.executable, "-c", code, str(STORY)], cwd=root, env=env, capture_output=True, check=False)
    done = subprocess.run([sys.executable, "-c", code, str(STORY)], cwd=root, env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
