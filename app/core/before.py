"""What is known of a launch before it happens in; whether a known-bad combination of a rule holds, and why, out.

A condition of `before:` holds only on what is known: an unknown version, GPU or model fails it, as nothing has been
seen yet. rules/README.md explains every key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

KEYS = {
    "engine", "versions", "gpu", "not_gpu", "knobs", "not_knobs", "flags", "no_flags", "args", "env", "model",
    "no_model", "fails", "why",
}  # fmt: skip
Pairs = tuple[tuple[str, str], ...]


class Before(NamedTuple):
    """One combination that is known to fail; all conditions must hold.

    `versions` maps packages to PEP 440 ranges; `gpu` patterns are on "sm120"; `knobs` are in force by what the command
    line says or by the release's default; `flags` are written, `no_flags` are not; `args`, `env`, `model` and
    `no_model` map a name to a pattern on its value. `fails` is False where it only may fail.
    """

    engine: tuple[str, ...] = ()
    versions: Pairs = ()
    gpu: tuple[str, ...] = ()
    not_gpu: tuple[str, ...] = ()
    knobs: Pairs = ()
    not_knobs: Pairs = ()
    flags: tuple[str, ...] = ()
    no_flags: tuple[str, ...] = ()
    args: Pairs = ()
    env: Pairs = ()
    model: Pairs = ()
    no_model: Pairs = ()
    fails: bool = True
    why: str = ""


class Launching(Protocol):
    """What may be asked of a launch; None and "" where it is not known or not said."""

    @property
    def engine(self) -> str: ...

    @property
    def environ(self) -> Mapping[str, str]: ...

    def package(self, name: str) -> str | None:
        """A package's version."""

    def architectures(self) -> Sequence[str]:
        """The GPUs' architectures, "sm120"."""

    def written(self, spelling: str) -> bool:
        """Whether a flag is given."""

    def value(self, spelling: str) -> str | None:
        """What is given for a flag."""

    def in_force(self, knob: str, value: str) -> bool:
        """Whether a knob is at a value already, by the command line or by default."""

    def about_model(self, name: str) -> str:
        """A fact of the model: architecture, model_type, quantization, multimodal."""


def holds(before: Before, launch: Launching, within: Callable[[str, str], bool]) -> list[str] | None:
    """What makes a combination hold, a phrase each; None where a condition fails. `within(version, range)` compares."""
    found: list[str] = []
    if before.engine and launch.engine not in before.engine:
        return None
    for name, spec in before.versions:
        version = launch.package(name)
        if version is None or not within(version, spec):
            return None
        found.append(f"{name} {version}")
    kinds = list(launch.architectures())
    if before.gpu or before.not_gpu:
        if not kinds or not all(_any(before.gpu, kind) if before.gpu else True for kind in kinds):
            return None
        if any(_any(before.not_gpu, kind) for kind in kinds):
            return None
        found.append("GPU " + ", ".join(sorted(set(kinds))))
    for name, pattern in before.model:
        value = launch.about_model(name)
        if not value or not re.search(pattern, value):
            return None
        found.append(f"model {name} {value}")
    if any((value := launch.about_model(name)) and re.search(pattern, value) for name, pattern in before.no_model):
        return None
    if any(not launch.written(spelling) for spelling in before.flags):
        return None
    found += [f"{spelling} is given" for spelling in before.flags]
    if any(launch.written(spelling) for spelling in before.no_flags):
        return None
    for name, pattern in before.args:
        given = launch.value("--" + name.replace("_", "-"))
        if given is None or not re.search(pattern, given):
            return None
        found.append(f"{name} is {given}")
    for name, pattern in before.env:
        if not re.search(pattern, launch.environ.get(name, "")):
            return None
        found.append(f"{name}={launch.environ.get(name, '')}")
    if any(launch.in_force(name, value) for name, value in before.not_knobs):
        return None
    for name, value in before.knobs:
        if not launch.in_force(name, value):
            return None
        found.append(f"{name} is {value}")
    return found


def _any(patterns: Sequence[str], text: str) -> bool:
    return any(re.search(pattern, text) for pattern in patterns)


def before_from(read: Any, data: Any, path: tuple[str | int, ...], engines: tuple[str, ...]) -> Before | None:
    """One combination of a rule file; `read` collects what is wrong (app.core.rules)."""
    if not isinstance(data, Mapping):
        read.wrong(path, "expected a mapping with versions, gpu, knobs, model, …")
        return None
    read.known(data, KEYS, path)

    def texts(key: str, pattern: bool = False) -> tuple[str, ...]:
        found: tuple[str, ...] = read.texts(data.get(key), (*path, key), pattern=pattern)
        return found

    def pairs(key: str, pattern: bool = False) -> Pairs:
        rows = read.pairs(data.get(key), (*path, key))
        for name, value in rows if pattern else ():
            read.pattern(value, (*path, key, name))
        return tuple((name, str(value)) for name, value in rows)

    fails = data.get("fails", True)
    if not isinstance(fails, bool):
        read.wrong((*path, "fails"), "expected true or false")
    found = Before(
        texts("engine") or engines, pairs("versions"), texts("gpu", True), texts("not_gpu", True), pairs("knobs"),
        pairs("not_knobs"), texts("flags"), texts("no_flags"), pairs("args", True), pairs("env", True),
        pairs("model", True), pairs("no_model", True), bool(fails), str(data.get("why", "")).strip(),
    )  # fmt: skip
    if not (found.versions or found.gpu or found.not_gpu or found.args or found.env or found.model or found.flags):
        read.wrong(path, "holds for every launch", "name versions, a GPU, flags, args, env or the model")
    return found
