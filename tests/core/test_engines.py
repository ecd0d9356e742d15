"""Every engine file proves itself on its own samples; a wrong file is reported whole, each problem with its place."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import regex
import yaml

from app.core.engines import LIBRARIES, Engine, Sample, engine_from
from app.core.invalid import Problem
from app.core.patterns import compiled
from app.core.text import reader_of

RULES = Path(__file__).parents[2] / "rules" / "engines"
FILES = [RULES / "libraries.yaml", *sorted(RULES.glob("*/engine.yaml"))]


def read(path: Path) -> tuple[Engine, list[Problem]]:
    problems: list[Problem] = []
    return engine_from(yaml.safe_load(path.read_text(encoding="utf-8")), problems), problems


ENGINES = {engine.name: engine for engine, _ in map(read, FILES)}
SAMPLES = [(engine, sample) for engine in ENGINES.values() for sample in engine.samples]


def unprefixed(engine: Engine, line: str) -> tuple[str, dict[str, str]]:
    """The message and what the prefix told."""
    for pattern in engine.prefixes:
        found = compiled(pattern).match(line)
        if found:
            told = {key: value or "" for key, value in found.groupdict().items()}
            return told.pop("msg"), told
    return line, {}


def matches(engine: Engine, sample: Sample, text: str) -> Iterator[regex.Match[str]]:
    """The matches of the patterns that the sample names."""
    if sample.phase:
        phase = engine.phase(sample.phase)
        assert phase is not None
        patterns: list[Any] = [mark for mark in phase.marks if mark.kind == sample.kind]
    else:
        patterns = list(getattr(engine, sample.kind or "ready"))
    for pattern in patterns:
        found = pattern.last(text)
        if found:
            yield found


@pytest.mark.parametrize("path", FILES, ids=[path.parent.name + "/" + path.name for path in FILES])
def test_files_are_without_problems(path: Path) -> None:
    _, problems = read(path)
    assert problems == []


@pytest.mark.parametrize("path", FILES[1:], ids=[path.parent.name for path in FILES[1:]])
def test_an_engine_is_named_as_its_folder(path: Path) -> None:
    assert read(path)[0].name == path.parent.name


@pytest.mark.parametrize(
    ("engine", "sample"), SAMPLES, ids=[f"{engine.name}: {sample.line[:70]}" for engine, sample in SAMPLES]
)
def test_samples(engine: Engine, sample: Sample) -> None:
    text, told = unprefixed(engine, sample.line)
    rank = " ".join((told.get("ranks") or told.get("proc") or "").split())
    if sample.rank is not None:
        assert rank == sample.rank
    if sample.time is not None:
        assert told.get("time", "") == sample.time
    if sample.source is not None:
        assert told.get("source", "") == sample.source
    if sample.kind in (None, "none"):
        if sample.rank is sample.time is sample.source is None:  # a line that must not be taken for anything
            rows = [mark for phase in engine.phases for mark in phase.marks]
            taken = [one.match for one in (*rows, *engine.ready, *engine.command, *engine.gpu) if one.search(text)]
            assert taken == []
        return
    found = list(matches(engine, sample, text))
    assert found, f"no {sample.kind} pattern of {sample.phase or engine.name} matches {text!r}"
    values = {key: value for one in reversed(found) for key, value in one.groupdict().items() if value is not None}
    assert {key: values.get(key) for key in sample.numbers} == dict(sample.numbers)


@pytest.mark.parametrize("name", ["sglang", "vllm", "llamacpp"])  # few real lines of TensorRT-LLM were at hand
def test_most_phases_have_a_sample(name: str) -> None:
    """A phase nobody ever saw a line of is a guess."""
    engine = ENGINES[name]
    shown = {sample.phase for sample in engine.samples}
    unseen = [phase.id for phase in engine.phases if phase.id not in shown]
    assert len(unseen) < len(engine.phases) / 2, unseen


def test_every_literal_of_a_pattern_stands_in_what_it_matches() -> None:
    """The samples again, this time for the prefilter: what a pattern finds, a scan for its literals finds too."""
    checked = 0
    for engine, sample in SAMPLES:
        text, _ = unprefixed(engine, sample.line)
        for other in ENGINES.values():
            for pattern in other.patterns():
                if compiled(pattern.match).search(text):
                    checked += 1
                    assert any(literal in text for literal in pattern.literals), pattern.match
    assert checked > 100


@pytest.mark.parametrize("name", [name for name in ENGINES if name != LIBRARIES])
def test_no_prefix_takes_a_plain_line(name: str) -> None:
    for line in (
        "Traceback (most recent call last):",
        '  File "x.py", line 3, in f',
        "RuntimeError: boom",
        "| 1/7 [00:11<",
    ):
        assert unprefixed(ENGINES[name], line) == (line, {})


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        (
            "sglang",
            "Capturing batches (bs=8): 0%| | 0/5 [00:00<?, ?it/s][2026-06-08 07:21:05 TP1] Using MoE kernel config",
            [
                "Capturing batches (bs=8): 0%| | 0/5 [00:00<?, ?it/s]",
                "[2026-06-08 07:21:05 TP1] Using MoE kernel config",
            ],
        ),
        ("sglang", "[2026-06-08 07:21:05 TP1] one", ["[2026-06-08 07:21:05 TP1] one"]),
        (
            "vllm",
            "0/5 [00:00<?, ?it/s](Worker_TP0 pid=7) INFO 10-21 09:11:57 [a.py:1] x",
            ["0/5 [00:00<?, ?it/s]", "(Worker_TP0 pid=7) INFO 10-21 09:11:57 [a.py:1] x"],
        ),
    ],
)
def test_glued_records_come_apart(name: str, text: str, pieces: list[str]) -> None:
    glued = ENGINES[name].glued
    assert glued is not None
    cuts = [0, *(found.start() for found in compiled(glued).finditer(text)), len(text)]
    assert [text[a:b] for a, b in itertools.pairwise(cuts)] == pieces


def test_a_record_behind_a_few_dots_of_a_bar_comes_apart() -> None:
    lines = reader_of(ENGINES.values()).read(b"..........0.12.345.678 E llama_model_load: error loading model", 1)
    assert [line.text for line in lines] == ["..........", "llama_model_load: error loading model"]


GOOD: dict[str, Any] = {
    "name": "tiny",
    "title": "Tiny",
    "prefixes": [r"^\[\d+\] (?P<msg>.*)$"],
    "detect": ["tiny server"],
    "phases": [{"id": "load", "title": "loading", "silence": 10, "begin": [{"match": "loading begins"}]}],
    "ready": ["tiny is ready"],
    "samples": [{"line": "[1] tiny is ready", "kind": "ready"}],
}


def test_a_small_engine_is_enough() -> None:
    problems: list[Problem] = []
    engine = engine_from(GOOD, problems)
    assert problems == []
    assert [phase.id for phase in engine.phases] == ["load"]
    assert engine.multiline == "until-prefix"


def test_all_problems_are_told_at_once_and_each_has_its_place() -> None:
    problems: list[Problem] = []
    bad = {
        **GOOD,
        "prefixes": [r"^\[\d+\] .*$"],
        "multiline": "never",
        "version": ["server version 1"],
        "eras": [{"match": "old line here", "releases": "older"}],
        "phases": [
            {"id": "load", "title": "loading", "begin": [{"match": "(broken"}, {"match": r"\d+ x"}, {"match": 7}]},
            {
                "id": "load",
                "title": "again",
                "silence": True,
                "end": [{"match": "loading ends", "since": "soon", "by": "two"}],
            },
            {"id": "empty", "title": "empty", "silence": 1},
        ],
        "samples": [{"line": "x", "phase": "nowhere", "kind": "begin"}],
        "surprise": 1,
    }
    engine_from(bad, problems)
    told = {problem.path: problem.reason for problem in problems}
    assert told[("prefixes", 0)] == "has no group `msg`"
    assert told[("multiline",)] == "'never' is not known"
    assert told[("version", 0, "match")] == "names no version"
    assert told[("eras", 0, "releases")] == "'older' is not a set of releases"
    assert told[("phases", 0, "begin", 0, "match")].startswith("is not a regular expression: ")
    assert told[("phases", 0, "begin", 1, "match")].startswith("has no literal text of 5 characters")
    assert told[("phases", 0, "begin", 2, "match")] == "must be text, not int"
    assert told[("phases", 0)] in ("`silence` is missing", "no line tells this phase")
    assert told[("phases", 1, "id")] == "phase 'load' stands twice"
    assert told[("phases", 1, "silence")] == "must be a number, not True"
    assert told[("phases", 1, "end", 0, "since")] == "'soon' is not a release"
    assert told[("phases", 1, "end", 0, "by")] == "'two' is not known"
    assert told[("phases", 2)] == "no line tells this phase"
    assert told[("samples", 0)] == "'nowhere' is no phase of this engine"
    assert told[("surprise",)] == "`surprise` is not known here"


@pytest.mark.parametrize("key", ["prefixes", "detect", "phases", "ready", "samples"])
def test_an_engine_needs_all_its_parts(key: str) -> None:
    problems: list[Problem] = []
    engine_from({name: value for name, value in GOOD.items() if name != key}, problems)
    assert [problem.path for problem in problems] == [(key,)]
