"""The upgrade to the release that fixed a problem, as a remedy."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.diagnosis import Diagnosis
from app.core.invalid import Problem
from app.core.rules import rule_from
from app.core.upgrades import fixes, steps_of, with_upgrade
from app.knowledge import Base, load
from app.report import to_json

LOG = b"""[2025-03-01 10:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "/env/sglang/srt/managers/scheduler.py", line 1820, in run_scheduler_process
    scheduler.event_loop_overlap()
AttributeError: 'Scheduler' object has no attribute 'token_to_kv_pool'
"""


@pytest.fixture(scope="module")
def base() -> Base:
    return load()


def data(**more: Any) -> dict[str, Any]:
    remedies = [{"title": "Mend", "do": "Mend it."}]
    return {
        "id": "host/odd", "title": "Odd", "when": [{"text": "something odd"}], "cause": "Odd.", "remedies": remedies, **more
    }  # fmt: skip


def test_a_rule_that_was_fixed_offers_the_upgrade_last() -> None:
    rule = rule_from(data(fixed_in={"sglang": "0.5.14"}), [])
    assert rule is not None
    *others, upgrade = with_upgrade(rule)
    assert [each.title for each in others] == ["Mend"]
    assert upgrade.title == "Upgrade to SGLang 0.5.14 or later"
    assert not upgrade.safe
    assert (
        steps_of(upgrade, fixes(rule)) == 'Run `pip install --upgrade "sglang>=0.5.14"` in the engine\'s environment.'
    )
    assert steps_of(others[0], fixes(rule)) == "Mend it."


def test_a_remedy_of_its_own_words_takes_its_place() -> None:
    own = [{"title": "Take a newer one", "upgrade": True, "do": "It is another operator there."}]
    rule = rule_from(data(fixed_in={"flashinfer": "0.6.12"}, remedies=own), [])
    assert rule is not None
    (upgrade,) = with_upgrade(rule)
    steps = steps_of(upgrade, fixes(rule), {"flashinfer": "0.6.3"})
    assert steps is not None
    assert '"flashinfer-python>=0.6.12"' in steps
    assert "(here is 0.6.3)" in steps
    assert steps.endswith("It is another operator there.")


def test_another_engines_fix_is_nothing_to_this_one() -> None:
    own = [{"title": "Upgrade vLLM", "upgrade": True}, {"title": "Mend", "do": "Mend it."}]
    rule = rule_from(data(fixed_in={"vllm": "0.15.1"}, remedies=own), [])
    assert rule is not None
    assert fixes(rule, "sglang") == {}
    assert [each.title for each in with_upgrade(rule, "sglang")] == ["Mend"]
    assert [each.title for each in with_upgrade(rule, "vllm")] == ["Upgrade vLLM", "Mend"]
    assert [each.title for each in with_upgrade(rule)] == ["Upgrade vLLM", "Mend"]


def test_in_a_container_it_is_the_image() -> None:
    rule = rule_from(data(fixed_in={"sglang": "0.5.14"}), [])
    assert rule is not None
    argv = [
        "docker",
        "run",
        "--gpus",
        "all",
        "lmsysorg/sglang:v0.5.9",
        "python3",
        "-m",
        "sglang.launch_server",
        "--model-path",
        "m",
    ]
    assert (
        steps_of(with_upgrade(rule)[-1], fixes(rule), {}, argv)
        == "Start from the image lmsysorg/sglang:v0.5.14 or a later one."
    )


def test_what_pip_does_not_install_is_only_named() -> None:
    rule = rule_from(data(fixed_in={"rocm": "7.2.1"}), [])
    assert rule is not None
    assert steps_of(with_upgrade(rule)[-1], fixes(rule)) == "Install ROCm 7.2.1 or later."


def test_an_upgrade_to_nowhere_is_a_problem() -> None:
    problems: list[Problem] = []
    rule_from(data(remedies=[{"title": "Upgrade", "upgrade": True}]), problems)
    assert [each.path for each in problems] == [("fixed_in",)]


@pytest.mark.parametrize(("release", "offered"), [("0.4.3", True), (None, True), ("0.4.3.post4", False)])
def test_it_is_offered_only_where_an_older_release_may_be_installed(
    base: Base, release: str | None, offered: bool
) -> None:
    diagnosis = Diagnosis(base, release=release)
    diagnosis.feed(LOG)
    diagnosis.close()
    found = to_json(diagnosis.status(), "log", base)
    assert found["verdicts"][0]["rule"] == "checkpoint/scheduler-missing-attribute-token-to-kv-pool"
    upgrades = [each for each in found["verdicts"][0]["remedies"] if each["upgrade"]]
    assert [each["upgrade"] for each in upgrades] == ([{"sglang": "0.4.3.post4"}] if offered else [])
