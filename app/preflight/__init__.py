"""A command line in; what will break, under the same rule ids as after the crash, out. Nothing is started.

    report = preflight(argv, base, probe=…)      # milliseconds
    report.fails, report.items, report.to_json()

What is looked at: the words (against the installed parser, else the shipped table of that release), the model's files,
this machine, and what rules say under `before:` about combinations that are known to fail.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.core.advice import advise
from app.core.before import holds
from app.core.flags import FlagTable
from app.core.knobs import Knob
from app.core.launch import find_launch
from app.core.secrets import mask, mask_argv
from app.core.verdicts import Evidence, Verdict, version_in
from app.preflight.arguments import arguments
from app.preflight.finding import Finding
from app.preflight.host import host
from app.preflight.model import model
from app.preflight.situation import Ahead, ahead_of
from app.probe import Probe, ProbeError, interpreter_of, probe

if TYPE_CHECKING:
    from app.core.diagnosis import Status
    from app.knowledge import Base

__all__ = ["Finding", "Item", "Report", "ask_interpreter", "preflight"]


class Installed:
    """A rule base whose flag table for one engine is the installed parser's."""

    def __init__(self, base: Base, engine: str, table: FlagTable) -> None:
        self._base, self._engine, self._table = base, engine, table

    def knobs(self, engine: str) -> tuple[dict[str, Knob], FlagTable | None]:
        knobs, table = self._base.knobs(engine)
        return knobs, self._table if engine == self._engine else table

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)


@dataclass(frozen=True, slots=True)
class Item:
    """A finding with its rule: `verdict` is what the log would have given, `remedies` are in the shape of `explain`."""

    finding: Finding
    verdict: Verdict
    remedies: Sequence[Mapping[str, Any]]

    def to_json(self) -> dict[str, Any]:
        from app.core.advice import fill

        rule = self.verdict.rule
        return {
            "rule": rule.id, "title": rule.title, "fails": self.finding.fails, "found": mask(self.finding.text),
            "explanation": mask(fill(rule.cause, self.verdict.names)), "remedies": list(self.remedies),
            "references": list(rule.references), "fixed_in": dict(rule.fixed_in),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Report:
    """Everything found. `engine` is None where the command line starts no engine that we know: then nothing was looked
    at. `checked` says against what the arguments were held; `notes` are about the probe."""

    argv: tuple[str, ...]
    engine: str | None
    version: str | None
    checked: str
    items: tuple[Item, ...]
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def fails(self) -> bool:
        """Whether something was found that will end the start."""
        return any(item.finding.fails for item in self.items)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1, "engine": {"name": self.engine, "version": self.version}, "fails": self.fails,
            "checked": self.checked, "findings": [item.to_json() for item in self.items], "notes": list(self.notes),
            "argv": mask_argv(self.argv), "seconds": round(self.seconds, 3),
        }  # fmt: skip


def ask_interpreter(
    argv: Sequence[str], base: Base, *, environ: Mapping[str, str] | None = None, cwd: str | None = None,
    flags: str = "auto", limit: float | None = None,
) -> tuple[Probe | None, str]:  # fmt: skip
    """What the interpreter of a command line says, and a sentence where it cannot be asked.

    `flags`: "always" asks its parser (10 s the first time), "cached" takes only what is known from before, "never" does
    without, "auto" asks only where the shipped table does not have this very release.
    """
    environ = os.environ if environ is None else environ
    launch = find_launch(argv)
    python = interpreter_of(argv, environ)
    if launch is None or python is None:
        return None, "the engine's interpreter cannot be asked from here" if launch else ""
    whole = dict(environ)
    for name, place in launch.env.items():
        whole[name] = launch.words[place].partition(f"{name}=")[2]
    engine = None if flags == "never" else launch.engine
    try:
        found = probe(python, engine=engine, environ=whole, cwd=cwd, limit=limit, only_cached=flags != "always")
        version = found.version(launch.engine)
        if flags == "auto" and found.parser is None and version is not None:
            from app.core.flags import number

            _, table = base.knobs(launch.engine)
            if table is not None and number(version) not in [number(release) for release in table.releases]:
                found = probe(python, engine=engine, environ=whole, cwd=cwd, limit=limit)
    except ProbeError as error:
        return None, str(error)
    if version is None:
        return found, f"{python} has no {launch.engine}"
    return found, ""


def preflight(
    argv: Sequence[str], base: Base, *, probe: Probe | None = None, version: str | None = None, gpu: str | None = None,
    environ: Mapping[str, str] | None = None, cwd: str | None = None,
) -> Report:  # fmt: skip
    """Looks at a launch before it happens.

    `probe` is what its interpreter said (`ask_interpreter`), None where that is not known; `version` and `gpu`
    ("sm120") are told instead of it. `environ` and `cwd` are those of the launch. Starts nothing and changes nothing.
    """
    began = time.monotonic()
    environ = os.environ if environ is None else environ
    launch = find_launch(argv)
    if launch is None:
        return Report(tuple(argv), None, None, "nothing: no engine is started here", ())
    knobs, table = base.knobs(launch.engine)
    place = Path(cwd or os.getcwd())
    ahead = ahead_of(
        argv, knobs, table, probe=probe, version=version, environ=environ, cwd=place, launch=launch, gpu=gpu
    )
    assert ahead is not None
    known = Installed(base, ahead.engine, ahead.table) if ahead.installed and ahead.table else base
    items = [_item(finding, ahead, known, gpu) for finding in _findings(ahead, known)]
    shown = tuple(sorted((item for item in items if item is not None), key=lambda item: not item.finding.fails))
    return Report(
        tuple(argv), ahead.engine, ahead.version, _checked(ahead), shown, probe.notes if probe is not None else (),
        time.monotonic() - began,
    )  # fmt: skip


def _findings(ahead: Ahead, base: Any) -> Iterator[Finding]:
    yield from _imports(ahead)
    yield from arguments(ahead)
    yield from _known_bad(ahead, base)
    yield from model(ahead)
    yield from host(ahead)


def _known_bad(ahead: Ahead, base: Any) -> Iterator[Finding]:
    """What rules say under `before:`; the first combination of a rule that holds counts."""
    for rule in base.rules():
        for before in rule.before:
            found = holds(before, ahead, version_in)
            if found is not None:
                text = ", ".join(found) + (f": {before.why}" if before.why else "")
                yield Finding(rule.id, before.fails, text)
                break


def _imports(ahead: Ahead) -> Iterator[Finding]:
    """An engine that cannot even be imported: what it said is a log like any other."""
    parser = ahead.probe.parser if ahead.probe is not None else None
    if parser is not None and parser.failure is not None:
        yield Finding("", True, f"{ahead.engine} cannot be imported: {parser.failure}", log=parser.log)


def _checked(ahead: Ahead) -> str:
    if ahead.installed:
        return f"the parser of the installed {ahead.engine} {ahead.version}"
    if ahead.table is None or ahead.release.open:
        return "no list of arguments: there is none for this engine"
    if ahead.version is None:
        return f"the arguments of every release from {ahead.table.releases[0]} to {ahead.table.releases[-1]}"
    return f"the arguments of {ahead.engine} {ahead.release.version}"


def _item(finding: Finding, ahead: Ahead, base: Any, gpu: str | None) -> Item | None:
    """The finding with its rule; what an engine printed is read by the rules as it would be later."""
    status = _status(ahead, base, gpu, finding.log)
    verdict = status.cause if finding.log else None
    if verdict is None:
        found = base.find(finding.rule)
        if found is None:
            return None  # switched off
        evidence = (Evidence(0, finding.text, "found before the start"),)
        verdict = Verdict(found[0], 0, True, (), evidence, dict(finding.names), "")
    finding = replace(finding, rule=verdict.rule.id)
    return Item(finding, verdict, [row for row in advise(verdict, status, base) if verdict.rule.role == "cause"])


def _status(ahead: Ahead, base: Any, gpu: str | None, log: str) -> Status:
    from app.core.diagnosis import Diagnosis

    versions = ahead.probe.versions if ahead.probe is not None else {}
    sm = gpu or (ahead.probe.sm if ahead.probe is not None else None)
    diagnosis = Diagnosis(base, argv=ahead.argv, versions=versions, gpu=sm, release=ahead.version)
    if log:
        diagnosis.feed(log.encode())
        diagnosis.close(("2",) if log.count("\n") < 2 else ())
    return diagnosis.status()
