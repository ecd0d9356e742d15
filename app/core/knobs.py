"""Parsed `knobs.yaml` data in; for every knob, what each engine version's command line says to set it, out.

A rule sets a knob (`prefill_graph: disabled`) and never names a flag, because a flag's spelling, its default and even
its existence change from release to release. An ordinary knob is one line (`flag: --mem-fraction-static`): the flag
table says which releases have it and what it takes. The others list spellings, each for a range of versions.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from app.core.flags import Flag, Release, clauses, covers
from app.core.invalid import Problem

Value = object  # bool, int, float, str, None (back to the engine's default), a list or a mapping for JSON

TYPES = ("str", "int", "float", "list", "json", "switch")
_KNOB_KEYS = {
    "title",
    "type",
    "min",
    "max",
    "values",
    "merge",
    "flag",
    "switch",
    "drop",
    "special",
    "spellings",
    "note",
}
_SPELLING_KEYS = {"versions", "set", "values"}
_STEP_KEYS = {"add", "drop", "edit", "implied", "conflicts", "env"}
_EDIT_KEYS = {"flag", "set", "unset"}


class Add(NamedTuple):
    """A flag to write: the first of `flags` that the release has; `value` is its text, "{value}" the knob's own.

    With `unless` the flag is not needed where the release lacks it but has `unless`: leaving that one out is enough.
    """

    flags: tuple[str, ...]
    value: str | None = None
    unless: str = ""


class Edit(NamedTuple):
    """Keys to change inside the JSON value of one flag, when the command line has that flag."""

    flag: str
    set: tuple[tuple[tuple[str, ...], Value], ...] = ()
    unset: tuple[tuple[str, ...], ...] = ()


class Step(NamedTuple):
    """What to do to a command line.

    `drop` holds flags to take out (`--speculative-*` is a pattern). Any flag of `implied` already has the same effect,
    when nothing that `add`, `drop` or `edit` touches is written. A flag of `conflicts` makes the change impossible.
    `env` holds environment variables instead of flags.
    """

    add: tuple[Add, ...] = ()
    drop: tuple[str, ...] = ()
    edit: Edit | None = None
    implied: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


class Spelling(NamedTuple):
    """How a range of versions spells a knob: `set` for any value, `values` for named ones."""

    versions: str = ""
    set: Step | None = None
    values: tuple[tuple[str, Step], ...] = ()

    def step(self, value: str) -> Step | None:
        """What sets this value, None when these versions cannot say it."""
        return dict(self.values).get(value, self.set)


class Knob(NamedTuple):
    """Something that can be set at launch. `values` are the only names it takes ("" type str: anything when empty)."""

    name: str
    title: str = ""
    type: str = "str"
    minimum: float | None = None
    maximum: float | None = None
    values: tuple[str, ...] = ()
    merge: bool = False
    spellings: tuple[Spelling, ...] = ()

    def spelling(self, version: str) -> Spelling | None:
        """The spelling of one version; None when that version has no such knob."""
        return next((item for item in self.spellings if covers(item.versions, version)), None)

    def text(self, value: Value) -> str:
        """A value as flag text: 0.85 for 0.8500000001. ValueError with a sentence for what the knob cannot take."""
        if self.type == "switch":
            value = {True: "enabled", False: "disabled"}.get(value, value) if isinstance(value, bool) else value
        if isinstance(value, bool):
            raise ValueError(f"{self.name} takes {_kind(self.type)}, not {str(value).lower()}")
        named = {name for item in self.spellings for name, _ in item.values}
        if isinstance(value, str) and value in named:
            return value
        text = _text(self.name, self.type, value)
        if self.values and text not in self.values:
            raise ValueError(f"{self.name} takes {' or '.join(self.values)}, not {text!r}")
        if self.type in ("int", "float"):
            figure = float(text)
            if self.minimum is not None and figure < self.minimum:
                raise ValueError(f"{self.name} must be at least {self.minimum:g}, not {text}")
            if self.maximum is not None and figure > self.maximum:
                raise ValueError(f"{self.name} must be at most {self.maximum:g}, not {text}")
        return text


def _kind(type: str) -> str:
    return {"int": "a whole number", "float": "a number", "list": "a list", "json": "a JSON object"}.get(type, "a text")


def _text(name: str, type: str, value: Value) -> str:
    if type in ("int", "float"):
        try:
            figure = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise ValueError(f"{name} takes {_kind(type)}, not {value!r}") from None
        if not math.isfinite(figure) or (type == "int" and not figure.is_integer()):
            raise ValueError(f"{name} takes {_kind(type)}, not {value!r}")
        # Four places: what is left after arithmetic on figures from a log is noise.
        figure = round(figure, 4)
        return str(int(figure)) if figure.is_integer() else repr(figure)
    if type == "json":
        if not isinstance(value, Mapping):
            raise ValueError(f"{name} takes {_kind(type)}, not {value!r}")
        return json.dumps(value)
    if type == "list":
        items = [value] if isinstance(value, str | int | float) else value
        if not isinstance(items, Sequence) or not items:
            raise ValueError(f"{name} takes {_kind(type)}, not {value!r}")
        return json.dumps([_plain(name, str(item)) for item in items])
    return _plain(name, str(value))


def _plain(name: str, text: str) -> str:
    """A text that is safe as one word after a flag."""
    if (
        not text
        or (text.startswith("-") and not re.fullmatch(r"-\d+(?:\.\d+)?", text))
        or re.search(r"[\x00-\x1f]", text)
    ):
        raise ValueError(f"{name} cannot take {text!r}: empty, like a flag, or with control characters")
    return text


def open_release(engine: str, version: str, knobs: Mapping[str, Knob]) -> Release:
    """A parser for an engine without a flag table: the flags that its knobs name, and anything else is left alone."""
    found: dict[str, Flag] = {}
    for knob in knobs.values():
        spelling = knob.spelling(version)
        steps = [spelling.set, *(step for _, step in spelling.values)] if spelling else []
        for step in steps:
            for add in step.add if step else ():
                arity: int | str = "bool" if add.value is None else "+" if knob.type == "list" else 1
                dest = add.flags[0].lstrip("-").replace("-", "_")
                found.setdefault(add.flags[0], Flag(add.flags[0], add.flags, dest, arity))
            if step and step.edit:
                dest = step.edit.flag.lstrip("-").replace("-", "_")
                found.setdefault(step.edit.flag, Flag(step.edit.flag, (step.edit.flag,), dest, 1))
    return Release.of(engine, version, found.values(), open=True, flexible=True)


def knobs_from(data: object, problems: list[Problem]) -> dict[str, Knob]:
    """Every knob of a parsed `knobs.yaml`; every problem found is appended to `problems`, the rest still read."""
    entries = data.get("knobs") if isinstance(data, Mapping) else None
    if not isinstance(entries, Mapping):
        problems.append(Problem(("knobs",), "is not a mapping", "knobs: with one entry for each knob"))
        return {}
    knobs: dict[str, Knob] = {}
    for name, entry in entries.items():
        knob = _knob(str(name), entry, problems)
        if knob is not None:
            knobs[knob.name] = knob
    return knobs


def _knob(name: str, data: object, problems: list[Problem]) -> Knob | None:
    place: tuple[str | int, ...] = ("knobs", name)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        problems.append(Problem(place, "is not a knob's name", "lower case, digits and underscores"))
    if not _mapping(place, data, _KNOB_KEYS, problems):
        return None
    assert isinstance(data, Mapping)
    ways = [key for key in ("flag", "switch", "spellings") if key in data]
    if len(ways) != 1:
        problems.append(
            Problem(place, f"has {' and '.join(ways) or 'no spelling'}", "exactly one of flag, switch, spellings")
        )
        return None
    type = str(data.get("type", "switch" if ways == ["switch"] else "str"))
    if type not in TYPES:
        problems.append(Problem((*place, "type"), f"{type!r} is not a type", "one of " + ", ".join(TYPES)))
    if ways == ["switch"]:
        spellings = _switch((*place, "switch"), data["switch"], problems)
    elif ways == ["flag"]:
        drop = _words((*place, "drop"), data.get("drop", []), problems)
        flags = _words((*place, "flag"), data["flag"], problems)
        special = _named_steps((*place, "special"), data.get("special", {}), problems)
        spellings = (Spelling("", Step((Add(flags, "{value}"),), drop), special),)
    else:
        spellings = _spellings((*place, "spellings"), data["spellings"], problems)
    values = _words((*place, "values"), data.get("values", []), problems)
    if not values and type == "switch":
        values = tuple(dict.fromkeys(name for spelling in spellings for name, _ in spelling.values))
    return Knob(
        name,
        str(data.get("title", "")),
        type,
        _figure((*place, "min"), data.get("min"), problems),
        _figure((*place, "max"), data.get("max"), problems),
        values,
        bool(data.get("merge", False)),
        spellings,
    )


def _switch(place: tuple[str | int, ...], data: object, problems: list[Problem]) -> tuple[Spelling, ...]:
    """`{disabled: --disable-x}`: the value adds that flag, the other value leaves it out; "X|Y" are spellings of releases."""
    if not _mapping(place, data, {"enabled", "disabled"}, problems):
        return ()
    assert isinstance(data, Mapping)
    on, off = (tuple(filter(None, str(data.get(value, "")).split("|"))) for value in ("enabled", "disabled"))
    enabled = Step((Add(on, None, off[0] if off else ""),) if on else (), off)
    disabled = Step((Add(off, None, on[0] if on else ""),) if off else (), on)
    return (Spelling("", None, (("enabled", enabled), ("disabled", disabled))),)


def _spellings(place: tuple[str | int, ...], data: object, problems: list[Problem]) -> tuple[Spelling, ...]:
    if not isinstance(data, Sequence) or isinstance(data, str) or not data:
        problems.append(Problem(place, "is not a list", "one entry for each range of versions"))
        return ()
    found: list[Spelling] = []
    for index, entry in enumerate(data):
        here = (*place, index)
        if not _mapping(here, entry, _SPELLING_KEYS, problems):
            continue
        versions = str(entry.get("versions", ""))
        try:
            clauses(versions)
        except ValueError as error:
            problems.append(Problem((*here, "versions"), str(error), 'such as ">=0.5.10,<0.5.14"'))
            continue
        any_value = _step((*here, "set"), entry["set"], problems) if "set" in entry else None
        found.append(Spelling(versions, any_value, _named_steps((*here, "values"), entry.get("values", {}), problems)))
    return tuple(found)


def _named_steps(place: tuple[str | int, ...], data: object, problems: list[Problem]) -> tuple[tuple[str, Step], ...]:
    if not isinstance(data, Mapping):
        problems.append(Problem(place, "is not a mapping", "a step for each value"))
        return ()
    return tuple((str(name), _step((*place, str(name)), step, problems)) for name, step in data.items())


def _step(place: tuple[str | int, ...], data: object, problems: list[Problem]) -> Step:
    if not _mapping(place, data, _STEP_KEYS, problems):
        return Step()
    assert isinstance(data, Mapping)
    adds: list[Add] = []
    for text in _words((*place, "add"), data.get("add", []), problems):
        flag, _, value = text.partition(" ")
        adds.append(Add(tuple(flag.split("|")), value or None))
    env = data.get("env", {})
    if not isinstance(env, Mapping):
        problems.append(Problem((*place, "env"), "is not a mapping", "NAME: text"))
        env = {}
    return Step(
        tuple(adds),
        _words((*place, "drop"), data.get("drop", []), problems),
        _edit((*place, "edit"), data["edit"], problems) if "edit" in data else None,
        _words((*place, "implied"), data.get("implied", []), problems),
        _words((*place, "conflicts"), data.get("conflicts", []), problems),
        tuple((str(name), str(value)) for name, value in env.items()),
    )


def _edit(place: tuple[str | int, ...], data: object, problems: list[Problem]) -> Edit | None:
    if not _mapping(place, data, _EDIT_KEYS, problems):
        return None
    assert isinstance(data, Mapping)
    changes = data.get("set", {})
    if not isinstance(changes, Mapping) or not str(data.get("flag", "")).startswith("--"):
        problems.append(Problem(place, "names no flag or no keys", "flag: --x and set: {key.key: value}"))
        return None
    unset = _words((*place, "unset"), data.get("unset", []), problems)
    return Edit(
        str(data["flag"]),
        tuple((tuple(str(path).split(".")), value) for path, value in changes.items()),
        tuple(tuple(path.split(".")) for path in unset),
    )


def _mapping(place: tuple[str | int, ...], data: object, keys: set[str], problems: list[Problem]) -> bool:
    if not isinstance(data, Mapping):
        problems.append(Problem(place, "is not a mapping", "keys: " + ", ".join(sorted(keys))))
        return False
    for key in sorted(str(key) for key in data if key not in keys):
        problems.append(Problem((*place, key), "is not known here", "one of " + ", ".join(sorted(keys))))
    return True


def _words(place: tuple[str | int, ...], data: object, problems: list[Problem]) -> tuple[str, ...]:
    """One text or a list of texts."""
    items = [data] if isinstance(data, str) else data
    if not isinstance(items, Sequence) or not all(isinstance(item, str) and item for item in items):
        problems.append(Problem(place, "is not a text or a list of texts", "such as --enable-x"))
        return ()
    return tuple(items)


def _figure(place: tuple[str | int, ...], data: object, problems: list[Problem]) -> float | None:
    if data is None:
        return None
    if isinstance(data, bool) or not isinstance(data, int | float):
        problems.append(Problem(place, f"{data!r} is not a number", "a number"))
        return None
    return float(data)
