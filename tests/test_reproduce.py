"""Reproductions: the catalogue is sound, every kept log is named rightly and every remedy shown to help, and those that
need nothing but this environment are run for real."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from app.cases import cases, shipped_cases
from app.explain import Told, explain_bytes
from app.knowledge import Base, load
from fixtures.reproduce import environments, running
from fixtures.reproduce.catalogue import STANDARD, Reproduction, chosen, read

ROOT = Path(__file__).parent.parent
EVERY = read()
QUICK = [one for one in EVERY if one.environment == STANDARD]
ELSEWHERE = {
    # Shown by the tests of the real engine, and by a program of its own with FlashInfer's.
    "dynamo/flashinfer-fp4-jit-under-dynamo#1", "dynamo/flashinfer-fp4-jit-under-dynamo#2",
    "host/sglang-cpu-engine-not-enabled#1",
}  # fmt: skip


@pytest.fixture(scope="module")
def base() -> Base:
    return load()


def kept(one: Reproduction) -> Path:
    return shipped_cases() / one.case


def proofs(base: Base) -> dict[str, str]:
    """Every remedy, as area/key#number, with its proof."""
    rules = [base.rule(index) for index in range(len(base.packed))]
    return {f"{rule.id}#{n}": remedy.proof for rule in rules for n, remedy in enumerate(rule.remedies, 1)}


def test_every_reproduction_has_a_name_of_its_own() -> None:
    assert len({one.case for one in EVERY}) == len(EVERY)


def test_every_environment_is_declared() -> None:
    for name in {one.environment for one in EVERY} - {STANDARD}:
        if name.startswith("sglang-"):
            declared = ROOT / "tests" / "engine" / f"requirements-{name}-cpu.txt"
        else:
            declared = environments.DECLARED / f"{name}.txt"
        assert declared.is_file(), name


@pytest.mark.parametrize("one", EVERY, ids=lambda one: one.case)
def test_kept_as_the_catalogue_says(one: Reproduction) -> None:
    folder = kept(one)
    label = yaml.safe_load((folder / "case.yaml").read_text())
    assert (label["cause"], label["origin"]) == (one.cause, "verbatim")
    assert [after["remedy"] for after in label.get("after", [])] == [after.remedy for after in one.after]
    assert all(after["exit"] == 0 for after in label.get("after", []))
    assert label["exit"] in one.exit if one.exit else label["exit"] != 0


@pytest.mark.parametrize("one", [one for one in EVERY if one.after], ids=lambda one: one.case)
def test_nothing_is_named_after_the_remedy(one: Reproduction, base: Base) -> None:
    for log in sorted(kept(one).glob("after-*.log")):
        status = explain_bytes([log.read_bytes()], base, Told())
        assert status.cause is None, log.name
        assert status.state not in ("crashed", "stalled"), log.name


@pytest.mark.parametrize("one", [one for one in EVERY if one.exit and one.exit[0] < 0], ids=lambda one: one.case)
def test_a_signal_alone_is_no_cause(one: Reproduction, base: Base) -> None:
    """Who knows that a signal ended it knows no more of the reason; least of all that memory ran out."""
    told = Told(exit=(running.signal.Signals(-one.exit[0]).name,))
    status = explain_bytes([(kept(one) / "server.log").read_bytes()], base, told)
    assert status.cause is None


def test_no_case_is_left_over() -> None:
    known = {one.case for one in EVERY}
    assert [
        case.name for case in cases(shipped_cases()) if case.name.startswith("reproduced-") and case.name not in known
    ] == []


def test_no_kept_log_names_this_machine() -> None:
    for one in EVERY:
        for log in kept(one).glob("*.log"):
            data = log.read_bytes()
            for path in (str(ROOT), str(Path.home()) + "/", "/reproduce-"):
                assert path.encode() not in data, log


def test_what_is_said_to_be_reproduced_is(base: Base) -> None:
    shown = {after.remedy for one in EVERY for after in one.after} | ELSEWHERE
    said = proofs(base)
    assert shown <= set(said)
    assert {remedy for remedy, proof in said.items() if proof == "reproduced"} <= shown


@pytest.mark.parametrize("one", QUICK, ids=lambda one: one.case)
def test_it_still_happens(one: Reproduction, base: Base) -> None:
    """Before: the same verdict from a failure provoked just now. After: the program ends well."""
    try:
        before = running.run(one)
    except environments.Unavailable as error:
        pytest.skip(str(error))
    status = explain_bytes([before.log], base, Told())
    named = status.cause.rule.key if status.cause else "consequence-only"
    assert named == one.cause
    assert before.exit in one.exit if one.exit else before.exit != 0
    for after in one.after:
        assert running.run(one, after).exit == 0


def test_volatile_parts_do_not_count() -> None:
    old = b"INFO: Started server process [4711]\n[2026-12-01 10:00:00] port 41234 at 0x7f001122aabb\n"
    new = b"INFO: Started server process [99]\n[2026-12-02 11:30:09] port 51999 at 0x7f99887766aa\n"
    assert running.differences(old, new, "log") == []
    assert running.differences(old, new + b"Killed\n", "log") != []
    assert running.differences(old, new.replace(b"Started", b"Starting"), "log") != []


def test_lines_of_processes_side_by_side_may_change_places() -> None:
    assert (
        running.differences(b"rank 0 is through\nrank 1 is through\n", b"rank 1 is through\nrank 0 is through\n", "log")
        == []
    )


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing-like-it"):
        chosen(EVERY, ["nothing-like-it"])
    assert {one.script for one in chosen(EVERY, ["web"])} == {"web.py"}


def test_problems_of_the_catalogue_are_told_all_at_once(tmp_path: Path) -> None:
    wrong = tmp_path / "reproductions.yaml"
    wrong.write_text(
        json.dumps(
            {
                "a": {"program": "nothing.py", "cause": "x"},
                "b": {"cause": "x"},
                "c": {"program": "web.py", "cause": "x", "colour": 1},
            }
        )
    )
    with pytest.raises(
        ValueError, match=r"(?s)a: there is no scripts/nothing\.py.*b: program and cause.*c: unknown keys: colour"
    ):
        read(wrong)


def test_an_environment_that_is_not_built_is_said_plainly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environments, "LIBRARIES", tmp_path)
    with pytest.raises(environments.Unavailable, match=r"python -m fixtures\.reproduce build torch-2\.6\.0"):
        environments.python("torch-2.6.0")


def test_the_command_says_what_could_not_run(tmp_path: Path) -> None:
    """Exit status 3, and the reason, where nothing is wrong and something is missing."""
    environ = {"PATH": "/usr/bin:/bin", "BRINGUP_ENGINES": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "fixtures.reproduce", "run", "dynamo-lock"],
        cwd=ROOT, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "torch-2.6.0 is not built" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 same, 0 new or changed, 0 wrong, 3 could not run"
