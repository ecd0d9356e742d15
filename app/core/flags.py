"""What an engine's command-line parser takes: parsed `flags.json` data in, one `Release` per engine version out.

The data is a change list per flag spelling; a record holds from its `from` release until the next record. A version
that was not checked is given the nearest earlier checked release, compared by base number, so that 0.5.10, 0.5.10.post1
and 0.5.10rc2 are the same release.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from app.core.invalid import Problem

Number = tuple[int, ...]

_NUMBER = re.compile(r"\D*(\d+(?:\.\d+)*)")
_CLAUSE = re.compile(r"(<=|>=|==|!=|<|>)\s*(\d+(?:\.\d+)*)\s*$")
_LEVEL = re.compile(r"-O[0-3]")
_LEVELS = "--optimization-level"
_ARITIES = (0, 1, "?", "*", "+", "bool")
_RECORD_KEYS = {"from", "absent", "dest", "arity", "spellings", "choices", "deprecated", "use_instead", "required"}


def number(version: str) -> Number:
    """The base number of a version, trailing zeros off: "0.5.10.post1" -> (0, 5, 10). ValueError without digits."""
    found = _NUMBER.match(version)
    if not found:
        raise ValueError(f"{version!r} is not a version")
    parts = [int(part) for part in found[1].split(".")]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def clauses(versions: str) -> list[tuple[str, Number]]:
    """The conditions of a range: `>=0.5.3,<0.5.10` -> [(">=", (0, 5, 3)), ("<", (0, 5, 10))]; "" is no condition.

    Raises ValueError for anything else.
    """
    found: list[tuple[str, Number]] = []
    for clause in filter(None, (part.strip() for part in versions.split(","))):
        match = _CLAUSE.match(clause)
        if not match:
            raise ValueError(f"{clause!r} is not a version condition such as >=0.5.10")
        found.append((match[1], number(match[2])))
    return found


def covers(versions: str, version: str) -> bool:
    """Whether a version lies in a range; post-releases, candidates and local builds count as their base number."""
    mine = number(version)
    tests = {
        "<": lambda other: mine < other,
        "<=": lambda other: mine <= other,
        ">": lambda other: mine > other,
        ">=": lambda other: mine >= other,
        "==": lambda other: mine == other,
        "!=": lambda other: mine != other,
    }
    return all(tests[operator](other) for operator, other in clauses(versions))


class Flag(NamedTuple):
    """One option of one release's parser.

    `name` is the first spelling and stands for all of `spellings`; `arity` is 0 (store_true), 1, "?", "*", "+" or
    "bool" (has a `--no-` twin); `choices` is empty when anything is taken; several flags may write the same `dest`; a
    `required` one cannot be left out.
    """

    name: str
    spellings: tuple[str, ...]
    dest: str
    arity: int | str = 1
    choices: tuple[str, ...] = ()
    deprecated: bool = False
    use_instead: str = ""
    required: bool = False

    @property
    def takes_value(self) -> bool:
        return self.arity not in (0, "bool")


class Release(NamedTuple):
    """What one release's parser takes. `by_spelling` holds every option string, the `--no-` twins too.

    `open` means that the list is not complete: a flag that is not in it may still be accepted and is left alone.
    `flexible` is vLLM's way of reading: underscores count as dashes, and words that begin with -O are its own. With `keys`
    `--flag.key` sets a key of a flag's JSON.
    """

    engine: str
    version: str
    by_spelling: Mapping[str, Flag]
    open: bool = False
    flexible: bool = False
    keys: bool = False

    def flag(self, spelling: str) -> Flag | None:
        """The flag with exactly this spelling, None when the release has none."""
        if self.flexible and _LEVEL.fullmatch(spelling) and ("-O" in self.by_spelling or _LEVELS in self.by_spelling):
            return Flag(spelling, (spelling,), "optimization_level", 0)
        return self.by_spelling.get(self._plain(spelling))

    def _plain(self, spelling: str) -> str:
        if not self.flexible or not spelling.startswith("--") or spelling in self.by_spelling:
            return spelling
        name, dot, key = spelling.partition(".")
        return name.replace("_", "-") + dot + key

    def takes_keys(self, spelling: str) -> bool:
        """Whether this is part of a flag's value in a spelling of its own: `--speculative-config.method`, `-O.level`, `-O3`."""
        name, dot, _ = spelling.partition(".")
        return (self.flexible and spelling.startswith("-O")) or bool(self.keys and dot and self.flag(name))

    def candidates(self, spelling: str) -> list[str]:
        """What an exact or abbreviated spelling may mean, as argparse resolves it; several mean "ambiguous"."""
        spelling = self._plain(spelling)
        if spelling in self.by_spelling:
            return [spelling]
        if self.open or spelling in ("-", "--"):
            return []
        return sorted(known for known in self.by_spelling if known.startswith(spelling) and known[:2] == spelling[:2])

    @classmethod
    def of(
        cls,
        engine: str,
        version: str,
        flags: Iterable[Flag],
        open: bool = False,
        flexible: bool = False,
        keys: bool = False,
    ) -> Release:
        found = list(flags)
        by_spelling = {spelling: flag for flag in found for spelling in flag.spellings}
        for flag in found:
            for spelling in flag.spellings if flag.arity == "bool" else ():
                if spelling.startswith("--"):
                    by_spelling.setdefault("--no-" + spelling[2:], flag)
        return cls(engine, version, by_spelling, open, flexible, keys)


@dataclass(frozen=True, slots=True)
class FlagTable:
    """The parsers of every checked release of one engine, oldest first."""

    engine: str
    releases: tuple[str, ...]
    records: Mapping[str, tuple[tuple[int, Flag | None], ...]]
    flexible: bool = False
    keys_since: str = "0"
    _made: dict[int, Release] = field(default_factory=dict, compare=False, repr=False)

    def for_version(self, version: str) -> Release:
        """The nearest checked release that is not newer; the oldest one for anything older.

        Raises ValueError for a version without digits.
        """
        wanted = number(version)
        position = 0
        for index, release in enumerate(self.releases):
            if number(release) <= wanted:
                position = index
        if position in self._made:
            return self._made[position]
        flags: dict[str, Flag] = {}
        for changes in self.records.values():
            current: Flag | None = None
            for since, flag in changes:
                if since <= position:
                    current = flag
            if current is not None:
                flags[current.name] = current
        made = self._made[position] = Release.of(
            self.engine,
            self.releases[position],
            flags.values(),
            flexible=self.flexible,
            keys=self.flexible and wanted >= number(self.keys_since),
        )
        return made


def range_text(versions: Sequence[str], first: int, last: int) -> str:
    """The range that versions[first..last] of a complete, ordered list stand for: ">=0.5.10,<0.5.14"; "" for all."""
    text: list[str] = []
    if first > 0:
        text.append(">=" + _base(versions[first]))
    if last + 1 < len(versions):
        text.append("<" + _base(versions[last + 1]))
    return ",".join(text)


def _base(version: str) -> str:
    found = _NUMBER.match(version)
    return found[1] if found else version


def table_from(data: object, problems: list[Problem]) -> FlagTable:
    """A flag table from parsed `flags.json`; every problem found is appended to `problems`, the rest still read."""
    if not isinstance(data, Mapping):
        problems.append(Problem((), "is not a mapping", "an object with engine, releases and flags"))
        return FlagTable("", (), {})
    releases = _releases(data.get("releases"), problems)
    position = {version: index for index, version in enumerate(releases)}
    records: dict[str, tuple[tuple[int, Flag | None], ...]] = {}
    flags = data.get("flags")
    if not isinstance(flags, Mapping):
        problems.append(Problem(("flags",), "is not a mapping", "one list of records for each option string"))
        flags = {}
    for spelling, changes in flags.items():
        if not isinstance(changes, Sequence) or isinstance(changes, str):
            problems.append(Problem(("flags", spelling), "is not a list", "one record per changed release"))
            continue
        read = [_record(str(spelling), index, change, position, problems) for index, change in enumerate(changes)]
        kept = tuple(item for item in read if item is not None)
        if any(earlier[0] >= later[0] for earlier, later in pairwise(kept)):
            problems.append(Problem(("flags", spelling), "has records out of order", "oldest release first"))
        records[str(spelling)] = kept
    flexible = data.get("flexible")
    keys = str(flexible.get("keys", "0")) if isinstance(flexible, Mapping) else "0"
    return FlagTable(str(data.get("engine", "")), tuple(releases), records, bool(flexible), keys)


def _releases(data: object, problems: list[Problem]) -> list[str]:
    versions: list[str] = []
    for index, item in enumerate(data if isinstance(data, Sequence) and not isinstance(data, str) else ()):
        version = item[0] if isinstance(item, Sequence) and not isinstance(item, str) and item else item
        try:
            number(str(version))
        except ValueError as error:
            problems.append(Problem(("releases", index), str(error), 'a version, or ["0.5.9", "2026-02-23"]'))
            continue
        versions.append(str(version))
    if not versions:
        problems.append(Problem(("releases",), "names no release", "the checked versions, oldest first"))
    if any(number(a) >= number(b) for a, b in pairwise(versions)):
        problems.append(Problem(("releases",), "is out of order", "oldest release first"))
    return versions


def _record(
    spelling: str, index: int, data: object, position: Mapping[str, int], problems: list[Problem]
) -> tuple[int, Flag | None] | None:
    place = ("flags", spelling, index)
    if not isinstance(data, Mapping):
        problems.append(Problem(place, "is not a mapping", "a record with from, arity, dest …"))
        return None
    for key in data.keys() - _RECORD_KEYS:
        problems.append(Problem((*place, key), "is not known", "one of " + ", ".join(sorted(_RECORD_KEYS))))
    since = position.get(str(data.get("from")))
    if since is None:
        problems.append(Problem((*place, "from"), f"{data.get('from')!r} is not a checked release", "one of releases"))
        return None
    if data.get("absent"):
        return since, None
    arity = data.get("arity", 1)
    if isinstance(arity, bool) or arity not in _ARITIES:
        problems.append(Problem((*place, "arity"), f"{arity!r} is not an arity", "0, 1, '?', '*', '+' or 'bool'"))
        return None
    spellings = tuple(str(item) for item in data.get("spellings", [spelling]))
    if spelling not in spellings:
        problems.append(Problem((*place, "spellings"), f"lacks {spelling}", "every option string of the flag"))
    return since, Flag(
        name=spellings[0],
        spellings=spellings,
        dest=str(data.get("dest", spelling.lstrip("-").replace("-", "_"))),
        arity=arity,
        choices=tuple(str(choice) for choice in data.get("choices", ())),
        deprecated=bool(data.get("deprecated", False)),
        use_instead=str(data.get("use_instead", "")),
        required=bool(data.get("required", False)),
    )
