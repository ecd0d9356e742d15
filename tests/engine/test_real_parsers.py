"""Every knob, every value and every remedy against the parsers of published releases of SGLang and vLLM.

It runs where the wheels are: in the folder that BRINGUP_WHEELS names, else in the user's cache (bringup/wheels). To get
them, and what the newer ones declare their arguments with:

    pip download --no-deps -d ~/.cache/bringup/wheels sglang==0.4.6 sglang==0.5.9 sglang==0.5.23 vllm==0.11.0 …
    pip install --target ~/.cache/bringup/wheels/with msgspec packaging typing_extensions
    pytest tests/engine/test_real_parsers.py

Each release's own parser is built; libraries that its modules import on the way are stood in for, or, for vLLM, taken from
the environment of SGLang 0.5.23 (fixtures/reproduce/real_parsers.py says how). What a release checks only after parsing is
not seen here.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from app.core.flags import number
from app.core.launch import check, find_launch
from app.core.remedies import Change, apply
from app.core.verdicts import version_in
from app.knowledge import load
from fixtures.reproduce import real_parsers as real
from tests.core.test_remedies import BUSY, values
from tests.core.test_remedies import START as SGLANG_START

HERE = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bringup" / "wheels"
WHEELS = Path(os.environ.get("BRINGUP_WHEELS") or CACHE)

GRAPHS = '--cuda-graph-config \'{"prefill":{"max_bs":8}}\''
PYTHON = {"vllm": Path(os.environ.get("BRINGUP_ENGINES") or HERE / ".engines") / "0.5.23" / "bin" / "python"}
"""The interpreter that builds a parser, where it is not this one."""
START = {"sglang": SGLANG_START, "vllm": "python -m vllm.entrypoints.openai.api_server --model m"}
MORE = {
    "sglang": (BUSY, GRAPHS, "--config x.yaml", "--tp-size=2 --attention-backend=triton"),
    "vllm": (
        "-tp 2 --max_model_len=8192 --enforce-eager --gpu-memory-utilization 0.9 --trust-remote-code",
        "--speculative-config.method ngram --no-enable-prefix-caching -O3",
        '--compilation-config \'{"cudagraph_mode":"FULL"}\' --quantization fp8',
    ),
}

TABLES = {engine: real.shipped_table(engine) for engine in real.ENGINES}
FOUND: dict[tuple[str, str], Path] = {
    (engine, version): path
    for engine, table in TABLES.items()
    for version, path in (real.wheels(WHEELS, engine) if WHEELS.is_dir() else {}).items()
    if version in {item[0] for item in table["releases"]}  # one release of each base number
}
RELEASES = [
    pytest.param(*release, marks=[pytest.mark.skipif(
        not PYTHON.get(release[0], HERE).exists(), reason="needs the environment of SGLang 0.5.23 (tests/engine/README.md)"
    )])
    for release in FOUND
] or [pytest.param("", "", marks=pytest.mark.skip(f"no wheels in {WHEELS}: the docstring says how to get them"))]  # fmt: skip
every_release = pytest.mark.parametrize(("engine", "version"), RELEASES)
GRAPHS = '--cuda-graph-config \'{"prefill":{"max_bs":8}}\''


@cache
def base() -> Any:
    return load(cache=False)


def changed(engine: str, settings: dict[str, Any], command: str, version: str) -> Change:
    knobs, table = base().knobs(engine)
    return apply(settings, shlex.split(command), engine, version, knobs, table)


def asked(engine: str, version: str, lines: Sequence[Sequence[str]] = ()) -> dict[str, Any]:
    """What the release's parser takes, and what it says to each of these command lines."""
    own = []
    for argv in lines:
        launch = find_launch(argv)
        assert launch is not None
        own.append(list(launch.words[launch.start :]))
    answer: dict[str, Any] = real.ask(FOUND[engine, version], own, PYTHON.get(engine))
    return answer


def refused(engine: str, version: str, changes: dict[str, list[str]]) -> list[str]:
    """Which of the named command lines the release's parser refuses, with its words."""
    answer = asked(engine, version, list(changes.values()))
    return [f"{name}: {said}" for name, said in zip(changes, answer["tried"], strict=True) if said is not None]


@every_release
def test_the_shipped_table_is_what_the_parser_takes(engine: str, version: str) -> None:
    assert real.differences(TABLES[engine], version, asked(engine, version)) == []


def lines(engine: str, version: str) -> Iterator[str]:
    """Command lines to change, as far as the release takes them."""
    yield START[engine]
    for more in MORE[engine]:
        if not check(shlex.split(f"{START[engine]} {more}"), base().knobs(engine)[1].for_version(version)):
            yield f"{START[engine]} {more}"


@every_release
def test_the_lines_to_change_are_taken(engine: str, version: str) -> None:
    assert refused(engine, version, {line: shlex.split(line) for line in lines(engine, version)}) == []


@every_release
def test_every_knob_at_every_value_is_taken_or_blocked(engine: str, version: str) -> None:
    knobs, table = base().knobs(engine)
    release = table.for_version(version)
    changes: dict[str, list[str]] = {}
    for line in lines(engine, version):
        for knob in knobs.values():
            if knob.type == "json" and engine == "vllm":
                continue  # what is inside is checked too, and a made-up key is refused
            for value in {repr(value): value for value in (*values(knob, release), None)}.values():
                if value == "None":
                    continue  # vLLM lists it among its choices, reads it as no value, and then misses that among them
                change = changed(engine, {knob.name: value}, line, version)
                if change.blocked is None:
                    changes[f"{knob.name} = {value!r} after {line!r}"] = change.argv
    assert len(changes) > 50
    assert refused(engine, version, changes) == []


@every_release
def test_no_remedy_of_any_rule_yields_what_the_parser_refuses(engine: str, version: str) -> None:
    changes: dict[str, list[str]] = {}
    for rule in base().rules():
        for remedy in rule.remedies:
            ranges = [spec for name, spec in remedy.versions if name == engine]
            elsewhere = remedy.engines and engine not in remedy.engines
            if not remedy.set or elsewhere or not all(version_in(version, spec) for spec in ranges):
                continue
            settings = {name: _sample(value) for name, value in remedy.set}
            for line in lines(engine, version):
                change = changed(engine, settings, line, version)
                if change.blocked is None:
                    changes[f"{rule.id}: {remedy.title} after {line!r}"] = change.argv
    assert changes
    assert refused(engine, version, changes) == []


def _sample(value: Any) -> Any:
    """A constant as it is; in place of an expression over figures of a log, a figure that every such knob takes."""
    expression = isinstance(value, list) or (isinstance(value, str) and value.startswith("= "))
    return 1 if expression and '"' not in str(value) else "auto" if expression else value


@every_release
def test_flags_are_read_as_the_parser_reads_them(engine: str, version: str) -> None:
    """Exact, cut short, with `=`, without a value: what we call refused is refused, and nothing else is."""
    release = base().knobs(engine)[1].for_version(version)
    typed = {spelling for spelling, flag in release.by_spelling.items() if flag.takes_value and not flag.choices}
    tries: dict[str, list[str]] = {}
    for spelling, flag in sorted(release.by_spelling.items()):
        for written in {spelling, spelling[:-1], spelling[: len(spelling) // 2 + 2]} - {"-"}:
            if engine == "vllm" and spelling.startswith("--no-") and written != spelling:
                continue  # some releases know the twin of a switch in full only; to take it cut short does no harm
            values = [*flag.choices[:1], "no-such-choice"] if flag.choices else []
            for words in ([written], [f"{written}=x"], *([written, value] for value in values)):
                if len(words) == 1 and "=" in words[0] and spelling in typed:
                    continue  # "x" may have the wrong type, and types are not in the table
                tries[shlex.join(words)] = [*START[engine].split(), *words]
    answer = asked(engine, version, list(tries.values()))
    gone = [spelling for item in answer["flags"] if item.get("refused") for spelling in item["spellings"]]
    differ = []
    for name, argv, theirs in zip(tries, tries.values(), answer["tried"], strict=True):
        ours = check(argv, release)
        if theirs and "ambiguous" in theirs and any(spelling in theirs for spelling in gone):
            continue  # only a flag that is there to be refused makes it ambiguous
        if bool(ours) != (theirs is not None) and "invalid" not in (theirs or ""):
            differ.append(f"{name}: ours {ours}, parser {theirs}")
    assert differ == []


def test_the_wheels_cover_the_shipped_table() -> None:
    for engine in real.ENGINES:
        there = {number(version) for name, version in FOUND if name == engine}
        assert not there or len(there) >= 6, f"{engine}: the wheels in {WHEELS} are too few to say much"
