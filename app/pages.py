"""A rule in, its page out: what a person reads who met the message. Generated; `docs/rules/` holds one for every rule."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .core.before import Before
from .core.rules import Remedy, Rule, When
from .core.upgrades import fixes, steps_of, title_of, with_upgrade

if TYPE_CHECKING:
    from .knowledge import Base

INTRODUCTION = """\
One page a rule, generated from `rules/`. `bringup rules search no kernel image` finds those with these words, and so does
`GET /api/rules?search=…`."""
_ESCAPED = re.compile(r"\\([^\w\s])")


def rule_page(rule: Rule, base: Base) -> str:
    """Markdown: the message, what it means, how to tell it from its look-alikes, remedies, references."""
    return "\n".join(_page(rule, base)).rstrip() + "\n"


def search(rules: Iterable[Rule], text: str) -> list[Rule]:
    """The rules in whose id, title, explanation, patterns, look-alikes or remedies all words of `text` begin a word, in
    any case; those that have them in their id or title come first, then those with them in what the log says."""
    words = [re.compile(rf"(?<![^\W_]){re.escape(word)}") for word in text.casefold().split()]
    found = []
    for rule in rules:
        places = [" ".join(part).casefold() for part in _searched(rule)]
        if all(any(map(word.search, places)) for word in words):
            ranks = (rank for rank, place in enumerate(places) if all(word.search(place) for word in words))
            found.append((next(ranks, len(places)), rule.id, rule))
    return [rule for _, _, rule in sorted(found, key=lambda one: one[:2])]


def _searched(rule: Rule) -> Iterator[list[str]]:
    """What a search looks in, the most telling first."""
    yield [rule.id, rule.title]
    patterns = [pattern for when in rule.when for pattern in (*when.core(), *when.seen)]
    # a person types what the log says, not what a pattern escapes
    yield [_ESCAPED.sub(r"\1", pattern) for pattern in patterns]
    yield [rule.cause, rule.note or ""]
    yield [text for remedy in rule.remedies for text in (remedy.title, remedy.do or "")]
    yield [*(name for remedy in rule.remedies for name, _ in (*remedy.set, *remedy.env)), *rule.references]
    yield [miss.log for miss in rule.near_misses]


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
        yield "Fixed in " + ", ".join(f"{title_of(name)} {version}" for name, version in rule.fixed_in) + "."
        yield ""
    if rule.advice:
        yield "Of what the log itself advises, this does not help here:"
        yield ""
        words = base.printed_advice()
        yield from (f"- *{words.get(name, name)}*: {why}" for name, why in rule.advice)
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
        for place, remedy in enumerate(with_upgrade(rule), 1):
            yield from _remedy(place, remedy, rule)
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


def _remedy(place: int, remedy: Remedy, rule: Rule) -> Iterator[str]:
    yield f"{place}. **{remedy.title}** ({remedy.proof}{'' if remedy.safe else ', not without reading'})"
    settings = [f"{name}: {value}" for name, value in remedy.set]
    settings += [f"{name}={value}" if value is not None else f"unset {name}" for name, value in remedy.env]
    if remedy.patch:
        settings.append(f"PYTHONPATH=$(bringup patch {remedy.patch})")
    if settings:
        yield "   sets " + ", ".join(f"`{item}`" for item in settings) + " (spelled as the installed version wants it)"
    if steps := steps_of(remedy, fixes(rule)):
        yield "   " + " ".join(steps.split())
    if remedy.cost:
        yield f"   Cost: {remedy.cost}."


def write_pages(base: Base, folder: Path) -> list[Path]:
    """Write every rule's page and the index below `folder`; returns the files. Pages of rules that are gone are removed."""
    wanted: dict[Path, str] = {}
    index = ["# What bringup knows", "", INTRODUCTION, ""]
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
