"""A rule in, its page out: what a person reads who met the message. Generated; `docs/rules/` holds one for every rule."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .core.before import Before
from .core.rules import Remedy, Rule, When

if TYPE_CHECKING:
    from .knowledge import Base


def rule_page(rule: Rule, base: Base) -> str:
    """Markdown: the message, what it means, how to tell it from its look-alikes, remedies, references."""
    return "\n".join(_page(rule, base)).rstrip() + "\n"


def _page(rule: Rule, base: Base) -> Iterator[str]:
    yield f"# {rule.title}"
    yield ""
    kind = "cause" if rule.role == "cause" else "symptom: look for the cause before it"
    yield f"`{rule.id}` · {rule.status} · {kind}"
    yield ""
    if rule.cause:
        yield " ".join(rule.cause.split())
        yield ""
    if rule.note:
        yield " ".join(rule.note.split())
        yield ""
    if rule.fixed_in:
        yield "Fixed in " + ", ".join(f"{name} {version}" for name, version in rule.fixed_in) + "."
        yield ""
    yield "## How it shows"
    yield ""
    for place, when in enumerate(rule.when):
        if place:
            yield ""
        yield (
            "Enough for an incomplete verdict:"
            if not when.complete
            else ("Or:" if place else "In one message of the log:")
        )
        yield ""
        yield from _conditions(when)
    yield ""
    if rule.before:
        yield "## Known before the start"
        yield ""
        for before in rule.before:
            yield from _before(before)
        yield ""
    if rule.remedies:
        yield "## What helps"
        yield ""
        for place, remedy in enumerate(rule.remedies, 1):
            yield from _remedy(place, remedy)
        yield ""
    if rule.near_misses:
        yield "## What only looks like it"
        yield ""
        for miss in rule.near_misses:
            yield f"Not this one, because {miss.because}:"
            yield ""
            yield "```text"
            yield miss.log.rstrip()
            yield "```"
            yield ""
    if rule.supersedes:
        yield "Says more than: " + ", ".join(f"`{other}`" for other in rule.supersedes) + "."
        yield ""
    if rule.references:
        yield "## References"
        yield ""
        for link in rule.references:
            yield f"- <{link}>" if link.startswith("http") else f"- {link}"


def _before(before: Before) -> Iterator[str]:
    rows = [f"{name} {spec}" for name, spec in before.versions]
    rows += [f"GPU `{item}`" for item in before.gpu] + [f"not GPU `{item}`" for item in before.not_gpu]
    rows += [f"model's {name} matches `{pattern}`" for name, pattern in before.model]
    rows += [f"{name} is {value}" for name, value in before.knobs]
    rows += [f"{name} is not {value}" for name, value in before.not_knobs]
    rows += [f"`--{name.replace('_', '-')}` matches `{pattern}`" for name, pattern in before.args]
    rows += [f"`{name}` matches `{pattern}`" for name, pattern in before.env]
    rows += [f"`{flag}` is given" for flag in before.flags]
    if before.no_flags:
        rows.append("none of " + ", ".join(f"`{flag}`" for flag in before.no_flags))
    rows += [f"model's {name} does not match `{pattern}`" for name, pattern in before.no_model]
    yield f"- {'will' if before.fails else 'may'} fail: " + "; ".join(rows)


def _conditions(when: When) -> Iterator[str]:
    if when.raises is not None:
        parts = [
            f"{name} `{value}`"
            for name, value in (
                ("type", when.raises.type),
                ("message", when.raises.message),
                ("package", when.raises.package),
            )
            if value
        ]
        yield "- an exception with " + ", ".join(parts)
    rows = (
        ("the text", when.text), ("the frames, in this order,", when.frames), ("not", when.unless),
        ("elsewhere in this start", when.seen), ("nowhere in this start", when.absent), ("in phase", when.phase),
        ("not in phase", when.not_phase), ("engine", when.engine), ("GPU", when.gpu), ("not GPU", when.not_gpu),
        ("ended with", when.exit),
    )  # fmt: skip
    for name, patterns in rows:
        if patterns:
            yield f"- {name} " + ", ".join(f"`{pattern}`" for pattern in patterns)
    for package, spec in when.versions:
        yield f"- {package} {spec} (where known)"
    for name, pattern in when.args:
        yield f"- argument {name} matches `{pattern}`"
    if when.idle:
        yield f"- and then silence for {when.idle:.0f} s"


def _remedy(place: int, remedy: Remedy) -> Iterator[str]:
    yield f"{place}. **{remedy.title}** ({remedy.proof}{'' if remedy.safe else ', not without reading'})"
    settings = [f"{name}: {value}" for name, value in remedy.set]
    settings += [f"{name}={value}" if value is not None else f"unset {name}" for name, value in remedy.env]
    if remedy.patch:
        settings.append(f"PYTHONPATH=$(bringup patch {remedy.patch})")
    if settings:
        yield "   sets " + ", ".join(f"`{item}`" for item in settings) + " (spelled as the installed version wants it)"
    if remedy.do:
        yield "   " + " ".join(remedy.do.split())
    if remedy.cost:
        yield f"   Cost: {remedy.cost}."


def write_pages(base: Base, folder: Path) -> list[Path]:
    """Write every rule's page and the index below `folder`; returns the files. Pages of rules that are gone are removed."""
    wanted: dict[Path, str] = {}
    index = ["# What bringup knows", "", "One page a rule, generated from `rules/`.", ""]
    area = ""
    for rule in base.rules():
        if rule.area != area:
            area = rule.area
            index += ["", f"## {area}", ""]
        wanted[folder / rule.area / f"{rule.key}.md"] = rule_page(rule, base)
        mark = " _(symptom)_" if rule.role == "symptom" else ""
        index.append(f"- [{rule.title}]({rule.area}/{rule.key}.md){mark}")
    wanted[folder / "README.md"] = "\n".join(index) + "\n"
    for old in folder.rglob("*.md"):
        if old not in wanted:
            old.unlink()
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return sorted(wanted)


if __name__ == "__main__":
    import sys

    from .knowledge import load

    if len(sys.argv) != 2:
        sys.exit("usage: python -m app.pages FOLDER")
    print(f"{len(write_pages(load(), Path(sys.argv[1])))} pages")
