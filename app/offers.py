"""A verdict and the launch that met it in; the remedies that change that launch out, each as a launch to start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from app.core.advice import advise
from app.core.launch import find_launch
from app.core.patches import environment, typed
from app.core.remedies import apply
from app.core.secrets import mask, mask_argv
from app.ladder import Launch, Rung

if TYPE_CHECKING:
    from app.core.diagnosis import Status
    from app.core.verdicts import Verdict
    from app.knowledge import Base


def scrubbed(value: Any) -> Any:
    """JSON values with every command line in them masked."""
    if isinstance(value, dict):
        return {
            name: mask_argv(inner) if name == "argv" and inner else scrubbed(inner) for name, inner in value.items()
        }
    return [scrubbed(inner) for inner in value] if isinstance(value, list) else value


def offers(status: Status, launch: Launch, environ: Mapping[str, str], base: Base) -> list[Rung]:
    """The remedies of the verdict that the engine at hand takes, best first; [] without a cause.

    `environ` is the environment that the launch ran in. Where the engine's release is not known and the possible ones
    differ, each range has a rung of its own.
    """
    cause = status.cause
    if cause is None:
        return []
    found: list[Rung] = []
    for place, row in enumerate(advise(cause, status, base), 1):
        if row["change"] is not None and not row["blocked"]:
            found += _rungs(f"{cause.rule.id}#{place}", row, cause, status, launch, environ, base)
    return found


def _rungs(
    name: str, row: Mapping[str, Any], cause: Verdict, status: Status, launch: Launch, environ: Mapping[str, str],
    base: Base,
) -> list[Rung]:  # fmt: skip
    facts = status.facts
    engine = facts.engine or "unknown"
    knobs, table = base.knobs(engine)
    # `advise` masks what it shows; a launch needs the words as they are.
    wanted = dict(row["change"]["env"])
    if row["patch"]:
        wanted |= environment(row["patch"], facts.env.get("PYTHONPATH") or environ.get("PYTHONPATH"))
    change = apply(
        row["change"]["set"], launch.argv, engine, facts.version or facts.release, knobs, table,
        env=wanted, environ=environ, among=[facts.releases] if facts.releases else None,
        accepted=bool(facts.args) or facts.ready is not None,
    )  # fmt: skip
    if change.blocked is not None:
        return []
    known = find_launch(launch.argv) is not None
    variants: list[tuple[str, list[str], Mapping[str, str | None], list[str]]] = [
        (change.versions, change.argv, change.env, change.diff)
    ]
    for variant in reversed(change.variants):
        if "argv" in variant:
            rows: Any = variant
            variants.append((rows["versions"], rows["argv"], rows["env"], rows["diff"]))
    out = []
    for versions, argv, env, diff in variants:
        if not known and argv:
            continue  # the words to add are known, but not where
        title = row["title"] + (f" (as {engine} {versions} spells it)" if versions else "")
        label = name + (f"@{versions}" if versions else "")
        changed = launch.with_env(env, argv if known else None)
        lines = tuple(mask(typed(row["patch"], entry) if row["patch"] else entry) for entry in diff)
        out.append(Rung(label, cause.rule.id, title, changed, lines, row["safe"], row["cost"], row["proof"]))
    return out


def shown(rung: Rung) -> dict[str, Any]:
    """A rung as people and programs see it: no secrets."""
    return {
        "name": rung.name, "rule": rung.rule, "title": rung.title, "diff": list(rung.diff), "safe": rung.safe,
        "cost": rung.cost, "proof": rung.proof, "argv": mask_argv(rung.launch.argv),
    }  # fmt: skip
