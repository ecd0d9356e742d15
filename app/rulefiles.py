"""Knowledge files on disk in, checked rules, engines, knobs and flags out; every problem with its file and line, at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from .core.engines import Engine, engine_from
from .core.flags import FlagTable, table_from
from .core.invalid import Problem
from .core.knobs import Knob, knobs_from
from .core.rules import Rule, rule_from

File = tuple[Path, bytes]


@dataclass(frozen=True, slots=True)
class Located:
    """A problem with its place: `file:line`, the path inside the file, the reason, what would be right."""

    file: Path
    line: int
    problem: Problem

    def __str__(self) -> str:
        path = ".".join(str(part) for part in self.problem.path)
        remedy = f" ({self.problem.remedy})" if self.problem.remedy else ""
        return f"{self.file}:{self.line}: {path + ': ' if path else ''}{self.problem.reason}{remedy}"


class Found(NamedTuple):
    """What the files hold: rules by id with their file, engines, per engine its knobs and flag table, and the numbers of
    PyTorch's graph breaks by the first line of their message."""

    rules: dict[str, tuple[Rule, str]]
    engines: list[Engine]
    launches: dict[str, tuple[dict[str, Knob], FlagTable | None]]
    breaks: dict[str, str]


def parse(files: Sequence[File], problems: list[Located]) -> Found:
    """Everything in the files (`.yaml`, `.json`); what is wrong is added to `problems`, in file order, and never raised."""
    found = Found({}, [], {}, {})
    for file in files:
        if _is_about_engines(file[0]):
            _about_engine(file, found, problems)
        else:
            _about_rule(file, found, problems)
    _dangling(found, problems)
    return found


def _is_about_engines(path: Path) -> bool:
    return "engines" in path.parts[-3:-1]


def _about_rule(file: File, found: Found, problems: list[Located]) -> None:
    path = file[0]
    data = _data(file, problems)
    if data is None:
        return
    wrong: list[Problem] = []
    rule = rule_from(data, wrong)
    if rule is not None and not wrong:
        if rule.key != path.stem or rule.area != path.parent.name:
            wrong.append(Problem(("id",), f"{rule.id} does not stand in {rule.id}.yaml", "rename one of them"))
        found.rules[rule.id] = (rule, str(path))
    problems += _located(file, wrong)


def _about_engine(file: File, found: Found, problems: list[Located]) -> None:
    path, _ = file
    data = _data(file, problems)
    if data is None:
        return
    wrong: list[Problem] = []
    if path.stem == "graph_breaks":
        found.breaks.update((str(text), str(number)) for text, number in data["breaks"].items())
    elif path.stem in ("engine", "libraries"):
        found.engines.append(engine_from(data, wrong))
    else:
        knobs, table = found.launches.get(path.parent.name, ({}, None))
        if path.stem == "knobs":
            knobs = knobs_from(data, wrong)
        elif path.stem == "flags":
            table = table_from(data, wrong)
        else:
            wrong.append(Problem((), f"{path.name} is not known here", "engine.yaml, knobs.yaml or flags.json"))
        found.launches[path.parent.name] = (knobs, table)
    problems += _located(file, wrong)


def _dangling(found: Found, problems: list[Located]) -> None:
    """Names in rules that stand for nothing."""
    advice = {one.name for engine in found.engines for one in engine.advice}
    for rule, source in found.rules.values():
        wrong = [
            Problem(("supersedes",), f"there is no rule {other}")
            for other in rule.supersedes
            if not other.endswith("/*") and other not in found.rules
        ]
        wrong += [
            Problem(("advice", name), f"no engine file knows advice named {name!r}", ", ".join(sorted(advice)))
            for name, _ in rule.advice
            if name not in advice
        ]
        if wrong:
            place = Path(source)
            problems += _located((place, place.read_bytes()), wrong)


def _located(file: File, problems: Sequence[Problem]) -> list[Located]:
    return [Located(file[0], _line_of(*file, problem.path), problem) for problem in problems]


def _data(file: File, problems: list[Located]) -> Any:
    """What a file holds, None where it cannot be read."""
    path, raw = file
    if path.suffix != ".json":
        return _yaml(path, raw, problems)
    import json

    try:
        return json.loads(raw)
    except ValueError as error:
        problems.append(Located(path, getattr(error, "lineno", 1), Problem((), f"not JSON: {error}")))
        return None


_loader: Any = None


def _yaml(path: Path, raw: bytes, problems: list[Located]) -> Any:
    """A YAML file as data, with 1.2 booleans (true/false only, so that `on`, `off`, `yes` and `no` stay words)."""
    try:
        return yaml.load(raw, Loader=_yaml_loader())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or str(error)
        problems.append(Located(path, mark.line + 1 if mark else 1, Problem((), f"not YAML: {reason}")))
    except UnicodeDecodeError as error:
        problems.append(Located(path, 1, Problem((), f"not UTF-8: {error}")))
    return None


def _yaml_loader() -> Any:
    global _loader
    if _loader is None:
        import re

        parent: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

        class Loader(parent):  # type: ignore[misc]
            pass

        Loader.yaml_implicit_resolvers = {
            first: [(tag, pattern) for tag, pattern in row if tag not in (
                "tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:float")]
            for first, row in parent.yaml_implicit_resolvers.items()
        }  # fmt: skip
        Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), list("tf"))
        number = re.compile(r"^[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?$")
        Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
        _loader = Loader
    return _loader


def _line_of(path: Path, raw: bytes, inside: tuple[str | int, ...]) -> int:
    """The line on which the thing at `inside` stands (1 when it cannot be told)."""
    if path.suffix == ".json":
        return 1
    try:
        node: Any = yaml.compose(raw, Loader=_yaml_loader())
    except yaml.YAMLError:
        return 1
    line = 1
    for part in inside:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(part):
                    line, node = key.start_mark.line + 1, value
                    break
            else:
                return line
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            break
    return line
