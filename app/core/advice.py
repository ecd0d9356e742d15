"""A verdict, the launch and the engine's version in; the remedies that hold here out, each as a changed command line.

A remedy that this version cannot take is not dropped but says why (`blocked`); one for another version or GPU is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .verdicts import Verdict, search, version_in

if TYPE_CHECKING:
    from .diagnosis import Status
    from .rules import Remedy


class Unknown(Exception):
    """An expression needs a name that the log does not give."""


def advise(verdict: Verdict, status: Status, base: Any) -> list[dict[str, Any]]:
    """The remedies of a verdict for this launch, best first, in the shape of the JSON contract."""
    facts = status.facts
    out: list[dict[str, Any]] = []
    for remedy in verdict.rule.remedies:
        versions = facts.versions
        if any(name in versions and not version_in(versions[name], spec) for name, spec in remedy.versions):
            continue
        if remedy.gpu and facts.sm and not any(search(pattern, facts.sm) for pattern in remedy.gpu):
            continue
        out.append(_advice(remedy, verdict, status, base))
    return out


def _advice(remedy: Remedy, verdict: Verdict, status: Status, base: Any) -> dict[str, Any]:
    change: dict[str, Any] | None = None
    blocked: str | None = None
    try:
        settings = {name: _value(value, verdict.names, status) for name, value in remedy.set}
        env = {name: _value(value, verdict.names, status) for name, value in remedy.env}
        if settings or env:
            change, blocked = base.change(status, settings, env)
    except Unknown as unknown:
        blocked = str(unknown)
    return {
        "title": remedy.title,
        "change": change,
        "steps": remedy.do,
        "patch": remedy.patch,
        "cost": remedy.cost,
        "safe": remedy.safe,
        "proof": remedy.proof,
        "verified": list(remedy.verified),
        "blocked": blocked,
    }


def _value(value: Any, names: Mapping[str, str], status: Status) -> Any:
    if isinstance(value, str) and value.startswith("= "):
        return evaluate(value[2:], names, status)
    return value


def evaluate(expression: str, names: Mapping[str, str], status: Status) -> Any:
    """An expression of a rule, over captured names and facts.

    Raises Unknown where a name is not known or the result is no number that can be used.
    """
    from simpleeval import EvalWithCompoundTypes, InvalidExpression, NameNotDefined

    facts = status.facts
    known: dict[str, Any] = dict(names)
    known.update({name: value for name, value in facts.memory.items() if value is not None and name not in known})

    def arg(name: str) -> Any:
        value = facts.args.get(name)
        if value in (None, "", "None"):
            raise Unknown(f"needs {name}, which this log does not tell")
        return value

    def number(value: Any) -> float:
        try:
            return float(value)
        except (TypeError, ValueError):
            raise Unknown(f"needs a number where the log has {value!r}") from None

    functions = {
        "arg": arg, "number": number, "min": min, "max": max, "round": round, "floor": math.floor, "ceil": math.ceil,
    }  # fmt: skip
    try:
        result = EvalWithCompoundTypes(names=known, functions=functions).eval(expression)
    except NameNotDefined as error:
        raise Unknown(f"needs {error.name}, which this log does not tell") from None
    except (InvalidExpression, ArithmeticError, TypeError, ValueError) as error:
        raise Unknown(f"cannot be computed here: {error}") from None
    if isinstance(result, float) and not math.isfinite(result):
        raise Unknown("cannot be computed here: no finite number comes out")
    return round(result, 4) if isinstance(result, float) else result
