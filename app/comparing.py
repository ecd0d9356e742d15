"""Two attempts in, what differs between them out: words of the command line, variables, versions, seconds by phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def options(argv: Sequence[str]) -> list[str]:
    """A command line as options, each flag with its values, as a person reads it."""
    found: list[str] = []
    for word in argv:
        if word.startswith("-") or not found or not found[-1].startswith("-"):
            found.append(word)
        else:
            found[-1] += f" {word}"
    return found


def argv_diff(now: Sequence[str], then: Sequence[str]) -> list[str]:
    """What `now` has ("+…") and lacks ("-…") beside `then`, in the order of each."""
    new, old = options(now), options(then)
    more, less = Counter(new) - Counter(old), Counter(old) - Counter(new)
    return [f"-{each}" for each in old if _take(less, each)] + [f"+{each}" for each in new if _take(more, each)]


def _take(counts: Counter[str], each: str) -> bool:
    counts[each] -= 1
    return counts[each] >= 0


def map_diff(now: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, list[Any]]:
    """[now, then] by name where they differ; None for what is not there."""
    names = sorted({*now, *then})
    return {name: [now.get(name), then.get(name)] for name in names if now.get(name) != then.get(name)}


def phase_diff(
    now: Sequence[tuple[str, str, float | None]], then: Sequence[tuple[str, str, float | None]]
) -> list[dict[str, Any]]:
    """Every phase (id, title, seconds) of either, in the order of `now`, with both times."""
    old = {phase: seconds for phase, _, seconds in then}
    rows = [
        {"phase": phase, "title": title, "seconds": seconds, "other": old.get(phase)} for phase, title, seconds in now
    ]
    known = {phase for phase, _, _ in now}
    rows += [
        {"phase": phase, "title": title, "seconds": None, "other": seconds}
        for phase, title, seconds in then
        if phase not in known
    ]
    return rows
