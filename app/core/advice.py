"""A verdict, the launch and the engine's version in; the remedies that hold here out, each as a changed command line.

A remedy that this version cannot take is not dropped but says why (`blocked`); one for another version or GPU is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .patches import typed
from .patterns import search
from .secrets import mask, mask_argv
from .upgrades import fixes, steps_of, with_upgrade
from .verdicts import Verdict, version_in

if TYPE_CHECKING:
    from .diagnosis import Status
    from .rules import Remedy, Rule


class Unknown(Exception):
    """An expression needs a name that the log does not give."""


def advise(verdict: Verdict, status: Status, base: Any) -> list[dict[str, Any]]:
    """The remedies of a verdict for this launch, best first, in the shape of the JSON contract."""
    facts = status.facts
    out: list[dict[str, Any]] = []
    versions, fixed = facts.versions, fixes(verdict.rule, facts.engine)
    for remedy in with_upgrade(verdict.rule, facts.engine):
        if remedy.engines and facts.engine and facts.engine not in remedy.engines:
            continue
        if facts.engine and remedy.set and not all(name in base.knobs(facts.engine)[0] for name, _ in remedy.set):
            continue  # for another engine
        if any(name in versions and not version_in(versions[name], spec) for name, spec in remedy.versions):
            continue
        if remedy.gpu and facts.sm and not any(search(pattern, facts.sm) for pattern in remedy.gpu):
            continue
        if remedy.upgrade and any(
            name in versions and version_in(versions[name], f">={release}") for name, release in fixed.items()
        ):
            continue  # is here, and the failure too
        out.append(_advice(remedy, fixed, verdict, status, base))
    return [item for item in out if not (item["blocked"] and _said_better(item, out))]


def _said_better(blocked: Mapping[str, Any], advice: list[dict[str, Any]]) -> bool:
    """Whether another remedy does the same and can be done here."""
    return any(other["title"] == blocked["title"] and not other["blocked"] for other in advice)


def _advice(remedy: Remedy, fixed: Mapping[str, str], verdict: Verdict, status: Status, base: Any) -> dict[str, Any]:
    change: dict[str, Any] | None = None
    blocked: str | None = None
    try:
        settings = {name: _value(value, verdict.names, status) for name, value in remedy.set}
        env = {name: _value(value, verdict.names, status) for name, value in remedy.env}
        patch = _patch(remedy.patch, status)
        env |= patch
        if settings or env:
            engine = status.facts.engine or _only_engine(remedy.engines, verdict.rule)
            spec = dict(remedy.versions).get(engine or "")
            change, blocked = _change(settings, env, engine, status, base, spec)
            if change is not None and remedy.patch:
                change["diff"] = [typed(remedy.patch, entry) for entry in change["diff"]]
    except Unknown as unknown:
        blocked = str(unknown)
    return {
        "title": remedy.title,
        "change": change,
        "steps": steps_of(remedy, fixed, status.facts.versions, status.argv),
        "upgrade": dict(fixed) if remedy.upgrade else None,
        "patch": remedy.patch,
        "cost": remedy.cost,
        "safe": remedy.safe,
        "proof": remedy.proof,
        "verified": list(remedy.verified),
        "blocked": blocked,
    }


def _only_engine(engines: Sequence[str], rule: Rule) -> str | None:
    """The engine where the log does not tell it and only one can be meant: by the remedy, or by the rule itself."""
    meant = set(engines) or {name for when in rule.when for name in when.engine or ("",)}
    only = next(iter(meant)) if len(meant) == 1 else None
    return only or None


def _patch(name: str | None, status: Status) -> dict[str, str]:
    """The variable that puts a launch-time patch in force. Raises Unknown with the reason where it cannot be used."""
    if name is None:
        return {}
    from .launch import find_launch
    from .patches import PATCHES, environment

    reason = None
    for package, spec in PATCHES[name].proven:
        version = status.facts.versions.get(package)
        # One that is not known does not speak against it: the patch looks for itself and leaves everything as it is.
        if version is not None and not version_in(version, spec):
            reason = f"the patch is proven on {package} {spec}, and this is {version}"
    launch = find_launch(status.argv) if status.argv else None
    if launch is not None and launch.container is not None:
        reason = "the patch lies on this machine, and the engine runs in a container"
    if reason is not None:
        raise Unknown(reason)
    return environment(name, status.facts.env.get("PYTHONPATH"))


def _change(
    settings: Mapping[str, Any],
    env: Mapping[str, Any],
    engine: str | None,
    status: Status,
    base: Any,
    spec: str | None,
) -> tuple[dict[str, Any] | None, str | None]:
    """The changed launch in the contract's shape, and why it is not possible where it is not."""
    from .remedies import apply, to_json

    facts = status.facts
    if engine is None:
        if settings:
            return None, "the log does not tell which engine this is; give its command line with --argv"
        engine = "unknown"
    knobs, table = base.knobs(engine)
    among = ",".join(filter(None, (facts.releases, spec)))
    change = apply(
        settings, status.argv, engine, facts.version or facts.release, knobs, table, env=env,
        among=[among] if among else None, accepted=bool(facts.args) or facts.ready is not None,
    )  # fmt: skip
    shown = to_json(change)
    body = shown["change"] if change.blocked is None else None
    if isinstance(body, dict):
        body["argv"] = mask_argv(body["argv"])
        body["diff"] = [mask(entry) for entry in body["diff"]]
    return body, change.blocked  # type: ignore[return-value]


def _value(value: Any, names: Mapping[str, str], status: Status) -> Any:
    if isinstance(value, str) and value.startswith("= "):
        return evaluate(value[2:], names, status)
    if isinstance(value, list) and value and all(isinstance(item, str) and item.startswith("= ") for item in value):
        missing: Unknown | None = None
        for item in value:
            try:
                return evaluate(item[2:], names, status)
            except Unknown as unknown:
                missing = missing or unknown
        assert missing is not None
        raise missing
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
        value = facts.setting(name)
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


def fill(text: str, names: Mapping[str, str]) -> str:
    """Put captured names into a text: `{name}`; one that was not captured reads as "?"."""
    return re.sub(r"\{([a-z_][a-z0-9_]*)\}", lambda found: names.get(found[1], "?"), text)
