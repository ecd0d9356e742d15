"""What the log itself advises, held against what is known: right here, wrong here, or gone in this version.

Engines end a failure with a list of things to try that is the same for every cause ("Possible solutions: 1. set
--mem-fraction-static to a smaller value …"). Which lines are advice, and what each would change, is data (`advice` in the
engine files); what speaks against one is said by the rule of the cause, by its remedies, by the arguments in force and by
the flags of this release.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .advice import Unknown, evaluate, fill
from .secrets import mask
from .upgrades import title_of

if TYPE_CHECKING:
    from .diagnosis import Status
    from .engines import PrintedAdvice
    from .facts import Printed
    from .flags import Release
    from .knobs import Knob
    from .verdicts import Verdict

Says = Literal["right", "wrong", "gone", "done", "tells more", "open"]
"""right: a remedy here; wrong: does not help with this cause; gone: this version does not take it; done: in force already;
tells more: shows where it fails and mends nothing; open: nothing is known for or against it."""

_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)+")
_OFF = ("", "False", "None", "false", "null")


class Judged(NamedTuple):
    """One piece of printed advice: where it stands, its words, what is to be said of it, and why."""

    line: int
    text: str
    says: Says
    why: str


def judge(status: Status, verdict: Verdict | None, remedies: Sequence[Mapping[str, Any]], base: Any) -> list[Judged]:
    """Every piece of advice that this start printed, in the order of the log.

    `verdict` is the cause (None: not known), `remedies` its advice in the shape of the JSON contract.
    """
    out = []
    for printed in sorted(status.facts.printed.values(), key=lambda each: each.line):
        says, why = _judge(printed, status, verdict, remedies, base)
        out.append(Judged(printed.line, mask(printed.text), says, why))
    return out


def _judge(
    printed: Printed, status: Status, verdict: Verdict | None, remedies: Sequence[Mapping[str, Any]], base: Any
) -> tuple[Says, str]:
    advice, text = printed.advice, printed.text
    if advice.tells_more:
        return "tells more", advice.why
    facts = status.facts
    knobs, table = base.knobs(facts.engine) if facts.engine else ({}, None)
    version = facts.version or facts.release
    release = table.for_version(version) if table is not None and version else None
    if (
        release is not None
        and facts.engine
        and (gone := [flag for flag in _FLAG.findall(text) if not release.candidates(flag)])
    ):
        return "gone", f"{title_of(facts.engine)} {version} takes no {' and no '.join(gone)}"
    if advice.knob and release is not None and _in_force(knobs.get(advice.knob), advice.to, release, facts):
        return "done", f"{advice.knob} is {advice.to} in this start"
    if verdict is None:
        return "open", "the cause is not known"
    if (against := dict(verdict.rule.advice).get(advice.name)) is not None:
        return "wrong", against
    for place, remedy in enumerate(remedies, 1):
        ours = _same(advice, remedy, facts)
        if ours is not None:
            return ("right", f"remedy {place}") if ours else ("wrong", f"remedy {place} turns it the other way")
    if advice.only_if:
        try:
            holds = evaluate(advice.only_if, printed.names, status)
        except Unknown:  # its figures are garbled
            return "open", ""
        return ("right", "") if holds else ("wrong", fill(advice.why, printed.names))
    if advice.about and not any(fnmatchcase(verdict.rule.id, pattern) for pattern in advice.about):
        return "wrong", advice.why
    if advice.about:
        return "right", ""
    return "open", ""


def _same(advice: PrintedAdvice, remedy: Mapping[str, Any], facts: Any) -> bool | None:
    """Whether a remedy does what the advice says (True) or its opposite (False); None where it is about something else."""
    change = remedy["change"]
    if change is None or remedy["blocked"]:
        return None
    if advice.env:
        return True if advice.env in change["env"] and change["env"][advice.env] is not None else None
    if advice.knob not in change["set"]:
        return None
    value = change["set"][advice.knob]
    if advice.to not in ("lower", "higher"):
        return bool(str(value) == advice.to)
    now, then = _number(facts.memory.get(advice.knob) or facts.setting(advice.knob)), _number(value)
    if now is None or then is None or now == then:
        return None
    return (then < now) == (advice.to == "lower")


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _in_force(knob: Knob | None, value: str, release: Release, facts: Any) -> bool:
    """Whether the arguments of this start already say what setting a switch would; False where they do not tell."""
    spelling = knob.spelling(release.version) if knob is not None else None
    step = spelling.step(value) if spelling is not None else None
    if step is None or step.edit is not None or not (facts.args or facts.argv):
        return False
    if step.add:
        flag = next((found for add in step.add for name in add.flags if (found := release.flag(name))), None)
        return flag is not None and flag.arity == 0 and facts.setting(flag.dest) == "True"
    taken = [flag for name in step.drop if (flag := release.flag(name)) is not None]
    known = facts.args_complete or facts.argv is not None
    return bool(taken) and known and all((facts.setting(flag.dest) or "") in _OFF for flag in taken)
