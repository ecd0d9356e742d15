"""A launch and knob values that somebody outside asks for in; the changed launch out, or every reason against it.

Nothing that is asked for becomes a word of a command line unless it is a number in the knob's bounds or one of a closed
list of names.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from app.comparing import argv_diff, map_diff
from app.core.knobs import Knob, open_release
from app.core.launch import check, find_launch
from app.core.remedies import apply
from app.core.secrets import MASK, mask, mask_argv
from app.health import endpoint
from app.history import History, keys
from app.ladder import Launch, Rung
from app.targets.state import mask as mask_env

if TYPE_CHECKING:
    from app.core.flags import FlagTable
    from app.knowledge import Base

UNTOUCHED = {"port", "host", "trust_remote_code"}
"""Knobs that nobody sets from outside: where the server listens, and whether it runs code that comes with a model."""


REFUSED = {"conflict": 409, "cannot": 409, "stale": 412, "invalid": 422}
"""HTTP statuses by the kind of a refusal."""


class Refusal(Exception):
    """What was asked cannot be done; the text says why, in a sentence.

    `kind`: "conflict" (not in this state), "stale" (meant for another run or attempt), "invalid" (never so), "cannot"
    (not with this target). `more` is JSON to say with it."""

    def __init__(
        self, text: str, kind: Literal["conflict", "stale", "invalid", "cannot"] = "invalid", **more: Any
    ) -> None:
        super().__init__(text)
        self.kind = kind
        self.more = more


def settable(knobs: Mapping[str, Knob]) -> dict[str, Knob]:
    """The knobs that may be set from outside: numbers, switches, and named values."""
    return {name: knob for name, knob in knobs.items() if name not in UNTOUCHED and knob.type not in ("json", "list")}


def turned(wanted: Mapping[str, Any], launch: Launch, status: Mapping[str, Any], base: Base) -> Rung:
    """A launch with knobs set, as a rung. `status` is the target's, for the engine and its version.

    Refusal, with every reason at once, for a knob that is not there or not to be set from outside, a value that it does
    not take, a text that the engine's parser does not name among its choices, and when nothing would change.
    """
    found = find_launch(launch.argv)
    if found is None:
        raise Refusal("this command line starts no engine that bringup knows, so there are no knobs")
    engine = found.engine
    told = status.get("engine") or {}
    version = (told.get("version") if told.get("name") in (None, engine) else None) or None
    knobs, table = base.knobs(engine)
    allowed = settable(knobs)
    reasons = []
    for name, value in wanted.items():
        if name not in allowed:
            known = "is not for restarts from outside" if name in knobs else f"is no knob of {engine}"
            reasons.append(f"{name[:80]!r} {known}")
            continue
        if not (value is None or isinstance(value, str | int | float)):
            reasons.append(f"{name} takes one plain value")
            continue
        try:
            if value is not None:
                allowed[name].text(value)
        except (ValueError, OverflowError) as error:
            reasons.append(str(error)[:300])
            continue
        text = isinstance(value, str) and allowed[name].type == "str"
        if text and value not in _choices(allowed[name], engine, version, knobs, table):
            reasons.append(
                f"{name} takes only what the engine's parser names among its choices, not {str(value)[:80]!r}"
            )
    if reasons:
        raise Refusal("; ".join(reasons), reasons=reasons)
    change = apply(
        wanted, launch.argv, engine, version, knobs, table, environ=_environ(launch),
        among=[told["releases"]] if told.get("releases") else None, accepted=bool(status.get("phases")),
    )  # fmt: skip
    if change.blocked is not None:
        raise Refusal(change.blocked, reasons=[change.blocked])
    if table is not None and version is not None:
        release = table.for_version(version)
        new = [text for text in check(change.argv, release) if text not in check(launch.argv, release)]
        if new:
            raise Refusal("; ".join(new), reasons=new)
    title = ", ".join(f"{name}: {'default' if value is None else value}" for name, value in wanted.items())
    return Rung("knobs", "", title, launch.with_env(change.env, change.argv), tuple(map(mask, change.diff)))


def last_good(history: History, origin: Launch, current: Launch) -> Rung:
    """The last launch that became ready, of those that are another one than `current`, as a rung with what differs.

    `origin` is what the target was configured with: a launch counts when it served the same model on the same port of
    this machine, since that of another target is none of ours. Refusal when there is none, and when a variable of it
    was a secret, which the history does not keep, and `current` and `origin` do not have it either.
    """
    port = _port(origin.argv)
    entry = history.last_ready(
        keys(origin.argv)[1],
        lambda each: (
            _port(each.argv) == port and (each.argv, dict(each.env)) != (current.argv, _shown(dict(current.env)))
        ),
    )
    if entry is None:
        raise Refusal("no other launch of this model has become ready here before", "conflict")
    known = {**dict(origin.env), **dict(current.env)}
    env: dict[str, str | None] = {}
    for name, value in entry.env.items():
        kept = known.get(name)
        if value is not None and MASK in value:
            if kept is None or _shown({name: kept})[name] != value:
                raise Refusal(
                    f"{name} of the last good launch is a secret, which the history does not keep", "conflict"
                )
            value = kept
        env[name] = value
    now, then = dict(current.env), dict(env)
    lines = argv_diff(mask_argv(entry.argv), mask_argv(current.argv))
    for name, (new, old) in map_diff(_shown(then), _shown(now)).items():
        lines += [f"-{name}={old}"] * (old is not None) + [f"+{name}={new}"] * (new is not None)
    day = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.ended))
    launch = Launch(entry.argv, tuple(sorted(env.items())))
    return Rung("last_good", "", f"The launch that became ready on {day}", launch, tuple(lines), proof="reproduced")


def _port(argv: Sequence[str]) -> int | None:
    """Where a command line has its server listen; None when it does not tell."""
    where = endpoint(argv)
    return where.port if where is not None else None


def _shown(env: Mapping[str, str | None]) -> dict[str, str | None]:
    """Changed variables as the history keeps them: without their secrets."""
    values = mask_env({name: value or "" for name, value in env.items()})
    return {name: None if value is None else values[name] for name, value in env.items()}


def _choices(
    knob: Knob, engine: str, version: str | None, knobs: Mapping[str, Knob], table: FlagTable | None
) -> set[str]:
    """The closed list of texts that a knob takes: its own, and those of the parser (of the newest release that is
    known, where the engine's is not)."""
    found = {*knob.values, *(name for item in knob.spellings for name, _ in item.values)}
    if table is not None:
        release = table.for_version(version or list(table.releases)[-1])
    else:
        release = open_release(engine, version or "0", knobs)
    spelling = knob.spelling(release.version)
    for add in spelling.set.add if spelling and spelling.set else ():
        flag = next((own for each in add.flags if (own := release.flag(each))), None)
        if flag is not None:
            found |= set(flag.choices or ())
    return found


def _environ(launch: Launch) -> dict[str, str]:
    changed = dict(launch.env)
    kept = {name: value for name, value in os.environ.items() if name not in changed}
    return {**kept, **{name: value for name, value in changed.items() if value is not None}}
