"""Known-bad combinations: what makes one hold, and that nothing unknown does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from app.core.before import Before, holds
from app.core.invalid import Problem
from app.core.rules import rule_from
from app.core.verdicts import version_in


@dataclass(frozen=True)
class Launch:
    engine: str = "sglang"
    environ: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=lambda: {"sglang": "0.5.9"})
    kinds: Sequence[str] = ("sm120",)
    words: Mapping[str, str | None] = field(default_factory=dict)
    knobs: Mapping[str, str] = field(default_factory=lambda: {"prefill_graph": "enabled"})
    model: Mapping[str, str] = field(default_factory=lambda: {"quantization": "modelopt NVFP4"})

    def package(self, name: str) -> str | None:
        return self.packages.get(name)

    def architectures(self) -> Sequence[str]:
        return self.kinds

    def written(self, spelling: str) -> bool:
        return spelling in self.words

    def value(self, spelling: str) -> str | None:
        return self.words.get(spelling)

    def in_force(self, knob: str, value: str) -> bool:
        return self.knobs.get(knob) == value

    def about_model(self, name: str) -> str:
        return self.model.get(name, "")


STORY = Before(
    engine=("sglang",),
    versions=(("sglang", ">=0.5.5,<0.5.10"),),
    gpu=("^sm12[01]$",),
    knobs=(("prefill_graph", "enabled"),),
    model=(("quantization", "(?i)nvfp4"),),
    no_flags=("--enable-lora",),
    no_model=(("multimodal", "vision"),),
)


def test_the_story_holds_and_says_why() -> None:
    assert holds(STORY, Launch(), version_in) == [
        "sglang 0.5.9", "GPU sm120", "model quantization modelopt NVFP4", "prefill_graph is enabled",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "other",
    [
        {"engine": "vllm"},
        {"packages": {"sglang": "0.5.10"}},
        {"packages": {}},
        {"kinds": ("sm100",)},
        {"kinds": ("sm120", "sm90")},
        {"kinds": ()},
        {"knobs": {"prefill_graph": "disabled"}},
        {"model": {}},
        {"model": {"quantization": "NVFP4", "multimodal": "vision_config"}},
        {"words": {"--enable-lora": None}},
    ],
)
def test_one_condition_that_fails_or_is_not_known_is_enough(other: dict[str, Any]) -> None:
    assert holds(STORY, replace(Launch(), **other), version_in) is None


def test_flags_values_and_variables() -> None:
    before = Before(
        args=(("attention_backend", "^fa3$"),), env=(("SGLANG_X", "^1$"),), flags=("--tp",), not_gpu=("sm90",)
    )
    launch = Launch(environ={"SGLANG_X": "1"}, words={"--attention-backend": "fa3", "--tp": "2"})
    assert holds(before, launch, version_in) == ["GPU sm120", "--tp is given", "attention_backend is fa3", "SGLANG_X=1"]
    assert holds(before, replace(launch, environ={}), version_in) is None
    assert holds(before, replace(launch, kinds=("sm90",)), version_in) is None
    assert holds(before, replace(launch, words={"--attention-backend": "fa3"}), version_in) is None


def test_what_is_wrong_in_a_file_is_told_all_at_once() -> None:
    problems: list[Problem] = []
    data = {
        "id": "area/key", "title": "t", "cause": "c", "when": [{"text": "some fixed text"}],
        "before": [{"gpus": ["x"]}, {"gpu": ["("], "fails": "yes", "knobs": ["x"]}, "text"],
        "remedies": [{"title": "r", "patch": "no-such-patch"}],
    }  # fmt: skip
    rule_from(data, problems)
    told = [(".".join(map(str, problem.path)), problem.reason) for problem in problems]
    assert ("before.0.gpus", "unknown key 'gpus'") in told
    assert ("before.0", "holds for every launch") in told
    assert ("before.1.fails", "expected true or false") in told
    assert any(path == "before.1.gpu" and reason.startswith("not a regular expression") for path, reason in told)
    assert ("before.1.knobs", "expected a mapping, got list") in told
    assert ("before.2", "expected a mapping with versions, gpu, knobs, model, …") in told
    assert ("remedies.0.patch", "there is no patch 'no-such-patch'") in told
