"""From an unknown failure to a rule: the draft works at once on its own log, and check says what is left to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.authoring import add_case, new_rule
from app.cases import cases
from app.checking import FRAMES, SLOW, problems_of_case, problems_of_rule, slowest
from app.core.invalid import Problem
from app.core.rules import rule_from
from app.explain import explain_bytes
from app.knowledge import Base, load

UNKNOWN = b"""[2026-02-20 10:11:12 TP0] Load weight begin. avail mem=93.55 GB
[2026-02-20 10:11:14 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "/usr/lib/python3/dist-packages/sglang/srt/model_executor/model_runner.py", line 400, in load_model
    engine.prepare()
  File "/usr/lib/python3/dist-packages/acme_kernels/launch.py", line 12, in prepare
    raise LaunchPlanError(f"no launch plan for tile 128x64 on device {name}")
acme_kernels.errors.LaunchPlanError: no launch plan for tile 128x64 on device 'NVIDIA RTX PRO 6000'
[2026-02-20 10:11:14] Received sigquit from a child process. It usually means the child failed.
"""


@pytest.fixture(scope="module")
def base() -> Base:
    return load()


def test_an_unknown_failure_has_its_facts(base: Base) -> None:
    status = explain_bytes([UNKNOWN], base)
    assert (status.state, status.cause) == ("crashed", None)
    assert status.exception is not None
    assert status.exception.type == "acme_kernels.errors.LaunchPlanError"
    assert status.exception.raised_in == "acme_kernels"
    other_machine = UNKNOWN.replace(b"128x64", b"64x32").replace(b"TP0", b"TP5").replace(b"line 12", b"line 99")
    assert explain_bytes([other_machine], base).fingerprint == status.fingerprint != ""


def test_a_draft_rule_explains_its_own_log_at_once(tmp_path: Path, base: Base) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(UNKNOWN)
    told = list(new_rule(str(log), None, tmp_path / "rules", tmp_path / "fixtures", base))
    (rule_file,) = (tmp_path / "rules").rglob("*.yaml")
    assert str(rule_file) in told[0]
    again = load([tmp_path / "rules"], cache=False)
    status = explain_bytes([UNKNOWN.replace(b"128x64", b"64x32")], again)
    assert status.cause is not None
    assert status.cause.rule.key == rule_file.stem
    sibling = UNKNOWN.replace(b"no launch plan for tile", b"driver too old for tile")
    assert explain_bytes([sibling], again).cause is None
    (folder,) = (tmp_path / "fixtures").iterdir()
    assert {path.name for path in folder.iterdir()} == {"server.log", "case.yaml", "expect.txt"}
    with pytest.raises(ValueError, match="already explains this log"):
        list(new_rule(str(log), None, tmp_path / "rules", tmp_path / "fixtures", again))
    edited = rule_file.read_text().replace(
        "TODO a message that looks alike and has another cause", "driver too old for tile 1"
    )
    rule_file.write_text(edited.replace("references: []", "references: [https://example.org/acme]"))
    again = load([tmp_path / "rules"], cache=False)
    found = again.find(rule_file.stem)
    assert found is not None
    assert problems_of_rule(found[0], again, set(), True) == []
    (case,) = cases(tmp_path / "fixtures")
    assert problems_of_case(case, again, {rule_file.stem: found[0].id}) == []


ABORT = b"""llama_model_loader: loaded meta data with 36 key-value pairs and 399 tensors from model.gguf
/build/7/llama.cpp/ggml/src/ggml-acme.c:6490: GGML_ASSERT(acme_can_plan(b, a) && "no plan") failed
Aborted (core dumped)
"""


def test_a_draft_of_a_native_death_explains_it_wherever_it_was_built(tmp_path: Path, base: Base) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(ABORT)
    assert explain_bytes([ABORT], base).state == "crashed"
    list(new_rule(str(log), None, tmp_path / "rules", tmp_path / "fixtures", base))
    again = load([tmp_path / "rules"], cache=False)
    elsewhere = ABORT.replace(b"/build/7/llama.cpp/ggml/src/", b"D:\\a\\ggml\\src\\").replace(b"6490", b"6512")
    assert explain_bytes([elsewhere], again).cause is not None
    assert explain_bytes([ABORT.replace(b"ggml-acme.c", b"ggml-other.c")], again).cause is None


def test_a_known_failure_or_a_healthy_log_makes_no_rule(tmp_path: Path, base: Base) -> None:
    fixtures = Path(__file__).parent.parent / "fixtures"
    with pytest.raises(ValueError, match="already explains"):
        list(new_rule(str(fixtures / "founding-story" / "server.log"), None, tmp_path, tmp_path, base))
    healthy = tmp_path / "healthy.log"
    healthy.write_text("[2026-02-20 10:11:12 TP0] Load weight begin. avail mem=93.55 GB\n")
    with pytest.raises(ValueError, match="no exception in this log"):
        list(new_rule(str(healthy), None, tmp_path, tmp_path, base))


def test_a_case_is_masked_and_labelled(tmp_path: Path, base: Base) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(UNKNOWN + b"HF_TOKEN=hf_abcdefghijklmnopqrstuvwx\n")
    told = list(
        add_case(
            str(log), None, "consequence-only", "https://example.org/1", "verbatim", tmp_path / "fixtures", 0, base
        )
    )
    folder = tmp_path / "fixtures" / "consequence-only"
    assert "hf_abc" not in (folder / "server.log").read_text()
    assert "cause: consequence-only" in (folder / "case.yaml").read_text()
    assert told[0].startswith("wrote ")
    with pytest.raises(ValueError, match="no rule has this key"):
        list(add_case(str(log), None, "no-such-cause", "", "verbatim", tmp_path / "fixtures", 0, base))


@pytest.mark.parametrize(
    ("change", "path", "reason"),
    [
        ({"id": "NoSlash"}, ("id",), "expected area/cause-key"),
        ({"title": ""}, ("title",), "missing"),
        ({"role": "guess"}, ("role",), "not one of cause, symptom"),
        ({"when": []}, ("when",), "expected a list"),
        ({"when": [{"phase": ["weights"]}]}, ("when", 0), "something that must stand in the log"),
        ({"when": [{"text": r"\d+ abc"}]}, ("when", 0), "five characters or more"),
        ({"when": [{"text": "(a+)+ something"}]}, ("when", 0, "text"), "can take very long"),
        ({"when": [{"text": "fixed text", "wrong": 1}]}, ("when", 0, "wrong"), "unknown key"),
        ({"when": [{"text": "fixed text", "seen": "a.c"}]}, ("when", 0, "seen", 0), "five characters"),
        ({"remedies": [{"title": "x"}]}, ("remedies", 0), "does nothing"),
        ({"remedies": [{"title": "x", "do": "y", "proof": "sure"}]}, ("remedies", 0, "proof"), "not one of"),
        ({"remedies": []}, ("remedies",), "missing"),
        ({"cause": ""}, ("cause",), "missing"),
        ({"near_misses": [{"log": "x"}]}, ("near_misses", 0, "because"), "missing"),
    ],
)
def test_every_mistake_in_a_rule_is_told_with_its_place(change: dict, path: tuple, reason: str) -> None:
    data = {
        "id": "area/key", "title": "t", "role": "cause", "when": [{"text": "fixed text"}], "cause": "c",
        "remedies": [{"title": "r", "do": "d"}], "near_misses": [{"log": "x", "because": "y"}],
    }  # fmt: skip
    problems: list[Problem] = []
    assert rule_from(data, problems) is not None
    assert problems == []
    rule_from({**data, **change}, problems)
    assert any(problem.path == path and reason in problem.reason for problem in problems), problems


def test_patterns_that_backtrack_are_found() -> None:
    assert slowest(r"fixed text") < SLOW
    assert slowest(r"aaaa(?:\w|\s|a)*?(?:\w|\s|a)*?(?:\w|\s|a)*?!!") > SLOW
    assert slowest(r"fixed text[^\n]* and [^\n]* more") > SLOW, "slow on its own words only"
    assert slowest(r"fixed text[^\n]{0,80} and [^\n]{0,80} more") < SLOW


def test_patterns_for_frames_are_tried_on_frames() -> None:
    pattern = r"model_\w*loader\.py in load"
    assert slowest(pattern) > SLOW
    assert slowest(pattern, *FRAMES) < SLOW
    assert slowest(r"model_(?:\w+/?)+loader\.py in load", *FRAMES) > SLOW


def test_a_case_without_its_log_is_named(tmp_path: Path) -> None:
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "case.yaml").write_text("cause: none\norigin: verbatim\n")
    with pytest.raises(ValueError, match=r"odd/case\.yaml: there is no server\.log beside it"):
        list(cases(tmp_path))
