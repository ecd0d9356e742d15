"""Rules and cases in, every problem out: what `bringup rules check` reports and CI enforces."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .cases import NOTHING, Case, cases, shipped_cases
from .core.literals import is_common, required_literals
from .core.patterns import compiled
from .core.rules import Rule
from .explain import explain_bytes
from .knowledge import Base, load

SLOW = 0.05
"""Seconds of processor time that one pattern may take on a text made to make it backtrack."""
RECORD = (20_000, 1)
"""What a text pattern is tried on: characters in a line, lines."""
FRAMES = (300, 64)
"""What a pattern for frames is tried on: it only ever meets `path in function`, one a line."""
PLAIN = re.compile(r"(?<!\\)[A-Za-z_][\w ]{3,}")


def check_all(directories: Sequence[Path], fixtures: Path | None) -> tuple[list[str], str]:
    """Every problem as `file:line: what` or `file: what`, and a closing line with the counts."""
    base = load(directories, cache=False)
    problems = [str(problem) for problem in base.problems]
    folder = fixtures or shipped_cases()
    known: list[Case] = []
    if folder.is_dir():
        try:
            known = list(cases(folder))
        except ValueError as error:
            problems.append(str(error))
    sources = {base.rule(index).id: source for index, source in enumerate(base.sources)}
    proven = {case.cause for case in known if case.origin != "inferred"}
    keys: dict[str, str] = {}
    for rule in base.rules():
        source = sources[rule.id]
        if other := keys.get(rule.key):
            problems.append(f"{source}:1: the cause key {rule.key} is also that of {other}")
        keys[rule.key] = rule.id
        problems += [f"{source}:1: {text}" for text in problems_of_rule(rule, base, proven, bool(known))]
    for case in known:
        problems += problems_of_case(case, base, keys)
    stable = sum(rule.status == "stable" for rule in base.rules())
    summary = f"{len(base.packed)} rules ({stable} stable), {len(known)} cases, {len(problems)} problems"
    return problems, summary


def problems_of_rule(rule: Rule, base: Base, proven: set[str], has_cases: bool) -> list[str]:
    """What is wrong with one rule; `proven` are the causes that a real case shows."""
    out: list[str] = []
    if rule.role == "cause":
        if not rule.near_misses:
            out.append("near_misses: missing: write the log that looks alike and must stay silent")
        if rule.status == "stable" and has_cases and rule.key not in proven:
            out.append("status: stable without a real case; add one (`bringup case add`) or say draft")
        if not rule.references and rule.status == "stable":
            out.append("references: missing: where is this known from?")
    for place, miss in enumerate(rule.near_misses):
        status = explain_bytes([miss.log.encode()], base)
        if any(verdict.rule.id == rule.id for verdict in status.verdicts):
            out.append(f"near_misses.{place}: this rule fires on its own near miss")
    out += _of_before(rule, base)
    for when in rule.when:
        for pattern in (*when.seen, *when.absent):
            if all(is_common(literal) for literal in required_literals(pattern)):
                out.append(f"seen: {pattern!r} asks for text that stands in ordinary lines; name a rarer one")
        if any(is_common(literal) for literal in when.triggers()):
            out.append(f"when: {when.triggers()!r} stands in ordinary lines; name a rarer text")
        raises = (when.raises.type, when.raises.message) if when.raises else ()
        texts = (*when.text, *raises, *when.seen, *when.absent, *when.unless, when.last)
        asked = [(text, RECORD) for text in texts if text] + [(frame, FRAMES) for frame in when.frames]
        for pattern, size in asked:
            if (seconds := slowest(pattern, *size)) > SLOW:
                out.append(f"when: {pattern!r} takes {seconds * 1000:.0f} ms on a hostile text; bound its repetitions")
    return out


def _of_before(rule: Rule, base: Base) -> list[str]:
    """Knobs and flags that `before:` names and no release of the engine has."""
    out: list[str] = []
    for place, before in enumerate(rule.before):
        for engine in before.engine:
            knobs, table = base.knobs(engine)
            for name, value in (*before.knobs, *before.not_knobs):
                known = knobs.get(name)
                if known is None or not any(spelling.step(value) for spelling in known.spellings):
                    out.append(f"before.{place}: {engine} has no knob {name} with the value {value}")
            if table is None:
                continue
            for flag in (*before.flags, *before.no_flags):
                if not any(table.for_version(release).flag(flag) for release in table.releases):
                    out.append(f"before.{place}: no release of {engine} has {flag}")
    return out


def slowest(pattern: str, width: int = RECORD[0], lines: int = RECORD[1]) -> float:
    """Seconds the pattern takes on the worst of some texts of that size that make careless patterns backtrack."""
    program = compiled(pattern, True)
    return max(_seconds(program, text) for text in _hostile(pattern, width, lines))


def _hostile(pattern: str, width: int, lines: int) -> Iterator[str]:
    """Texts that begin like a match over and over and never end like one."""
    plain = PLAIN.findall(pattern)[:4]
    parts = [*required_literals(pattern)[:1], *plain, " ".join(plain[:-1]), " ", "a", '"', "\n", "Error: "]
    parts += [part + " a" * 40 for part in parts[:1]]
    for part in dict.fromkeys(filter(None, parts)):
        line = (part * (width // len(part) + 1))[:width]
        yield "\n".join([line] * lines)


def _seconds(program: Any, text: str) -> float:
    """Processor time of one search; of the better of two where the first one was slow."""
    took: list[float] = []
    while len(took) < 2 and (not took or took[0] > SLOW):
        begin = time.thread_time()
        try:
            program.search(text, timeout=1.0)
        except TimeoutError:
            return 1.0
        took.append(time.thread_time() - begin)
    return min(took)


def problems_of_case(case: Case, base: Base, keys: dict[str, str]) -> list[str]:
    """What is wrong with one case; `keys` are the cause keys there are."""
    out: list[str] = []
    place = case.folder / "case.yaml"
    status = case.status(base)
    result = case.judge(status)
    if result in ("wrong", "alarm") and case.origin != "inferred":
        got = status.cause.rule.id if status.cause else status.state
        out.append(f"{place}: labelled {case.cause}, explained as {got}")
    causes = [verdict for verdict in status.verdicts if verdict.rule.role == "cause" and verdict.complete]
    same = [verdict for verdict in causes if verdict.number == causes[0].number]
    if len(same) > 1:
        names = " and ".join(verdict.rule.id for verdict in same)
        out.append(f"{place}: {names} hold on the same line; one must supersede the other")
    if case.cause not in NOTHING and case.cause not in keys and not case.unexplained:
        out.append(f"{place}: there is no rule for {case.cause}")
    if not case.expected.exists():
        out.append(f"{place}: expect.txt is missing; write it with `BLESS=1 pytest tests/test_cases.py`")
    return out
