"""Every knob, every value and every remedy against the parsers of published releases of SGLang.

It runs where the wheels are: in the folder that BRINGUP_WHEELS names, else in the user's cache (bringup/wheels). To get
them, and what the newer ones declare their arguments with:

    pip download --no-deps -d ~/.cache/bringup/wheels sglang==0.4.6 sglang==0.5.9 sglang==0.5.23 …
    pip install --target ~/.cache/bringup/wheels/with msgspec packaging typing_extensions
    pytest tests/engine/test_real_parsers.py

Each release's own `ServerArgs.add_cli_args` is run; torch and other libraries that its modules import on the way are
stood in for (fixtures/reproduce/real_parsers.py says how). What a release checks only after parsing is not seen here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from app.core.flags import number
from app.core.launch import check
from app.core.remedies import Change, apply
from app.core.verdicts import version_in
from app.knowledge import load
from tests.core.test_remedies import BUSY, START, values

HERE = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bringup" / "wheels"
WHEELS = Path(os.environ.get("BRINGUP_WHEELS") or CACHE)

spec = importlib.util.spec_from_file_location("real_parsers", HERE / "fixtures" / "reproduce" / "real_parsers.py")
assert spec is not None
assert spec.loader is not None
real = importlib.util.module_from_spec(spec)
spec.loader.exec_module(real)

TABLE = json.loads((HERE / "rules" / "engines" / "sglang" / "flags.json").read_text())
IN_TABLE = {item[0] for item in TABLE["releases"]}  # one release of each base number
FOUND: dict[str, Path] = {
    version: path for version, path in (real.wheels(WHEELS) if WHEELS.is_dir() else {}).items() if version in IN_TABLE
}
VERSIONS = list(FOUND) or [
    pytest.param("", marks=pytest.mark.skip(f"no wheel of SGLang in {WHEELS}: the docstring says how to get them"))
]
every_release = pytest.mark.parametrize("version", VERSIONS)
GRAPHS = '--cuda-graph-config \'{"prefill":{"max_bs":8}}\''


@cache
def base() -> Any:
    return load(cache=False)


def sglang(settings: dict[str, Any], command: str, version: str) -> Change:
    knobs, table = base().knobs("sglang")
    return apply(settings, shlex.split(command), "sglang", version, knobs, table)


def own(argv: list[str]) -> list[str]:
    """The words that the parser gets."""
    return argv[argv.index("sglang.launch_server") + 1 :]


def refused(version: str, changes: dict[str, list[str]]) -> list[str]:
    """Which of the named command lines the release's parser refuses, with its words."""
    answer = real.ask(FOUND[version], [own(argv) for argv in changes.values()])
    return [f"{name}: {said}" for name, said in zip(changes, answer["tried"], strict=True) if said is not None]


@every_release
def test_the_shipped_table_is_what_the_parser_takes(version: str) -> None:
    assert real.differences(TABLE, version, real.ask(FOUND[version])) == []


def lines(version: str) -> Iterator[str]:
    """Command lines to change, as far as the release takes them."""
    yield START
    for more in (BUSY, GRAPHS, "--config x.yaml", "--tp-size=2 --attention-backend=triton"):
        if not check(shlex.split(f"{START} {more}"), base().knobs("sglang")[1].for_version(version)):
            yield f"{START} {more}"


@every_release
def test_every_knob_at_every_value_is_taken_or_blocked(version: str) -> None:
    knobs, table = base().knobs("sglang")
    release = table.for_version(version)
    changes: dict[str, list[str]] = {}
    for line in lines(version):
        for knob in knobs.values():
            for value in {repr(value): value for value in (*values(knob, release), None)}.values():
                change = sglang({knob.name: value}, line, version)
                if change.blocked is None:
                    changes[f"{knob.name} = {value!r} after {line!r}"] = change.argv
    assert len(changes) > 100
    assert refused(version, changes) == []


@every_release
def test_no_remedy_of_any_rule_yields_what_the_parser_refuses(version: str) -> None:
    changes: dict[str, list[str]] = {}
    for rule in base().rules():
        for remedy in rule.remedies:
            ranges = [spec for name, spec in remedy.versions if name == "sglang"]
            if not remedy.set or not all(version_in(version, spec) for spec in ranges):
                continue
            settings = {name: _sample(value) for name, value in remedy.set}
            for line in lines(version):
                change = sglang(settings, line, version)
                if change.blocked is None:
                    changes[f"{rule.id}: {remedy.title} after {line!r}"] = change.argv
    assert changes
    assert refused(version, changes) == []


def _sample(value: Any) -> Any:
    """A constant as it is; in place of an expression over figures of a log, a figure that every such knob takes."""
    expression = isinstance(value, list) or (isinstance(value, str) and value.startswith("= "))
    return 1 if expression and '"' not in str(value) else "auto" if expression else value


@every_release
def test_flags_are_read_as_the_parser_reads_them(version: str) -> None:
    """Exact, cut short, with `=`, without a value: what we call refused is refused, and nothing else is."""
    release = base().knobs("sglang")[1].for_version(version)
    typed = {spelling for spelling, flag in release.by_spelling.items() if flag.takes_value and not flag.choices}
    tries: dict[str, list[str]] = {}
    for spelling, flag in sorted(release.by_spelling.items()):
        for written in {spelling, spelling[:-1], spelling[: len(spelling) // 2 + 2]}:
            values = [*flag.choices[:1], "no-such-choice"] if flag.choices else []
            for words in ([written], [f"{written}=x"], *([written, value] for value in values)):
                if len(words) == 1 and "=" in words[0] and spelling in typed:
                    continue  # "x" may have the wrong type, and types are not in the table
                tries[shlex.join(words)] = [*START.split(), *words]
    answer = real.ask(FOUND[version], [own(argv) for argv in tries.values()])
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
    if not FOUND:
        pytest.skip(f"no wheel of SGLang in {WHEELS}")
    assert len({number(version) for version in FOUND}) >= 6
