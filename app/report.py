"""A status in, text out: what `explain` prints and what every expected file holds; JSON, Markdown and a terminal's text."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .core.advice import advise, fill
from .core.graphbreaks import graph_break
from .core.secrets import mask, mask_argv
from .core.upgrades import fixes, title_of

if TYPE_CHECKING:
    from .core.diagnosis import Status
    from .core.tracebacks import Raised
    from .knowledge import Base

SCHEMA = 1
WIDTH = 100
PROOF = {
    "reproduced": "reproduced before and after by this project",
    "reported": "reported to help",
    "suggested": "suggested, not proved",
}


def to_json(status: Status, source: str, base: Base, near: bool = False) -> dict[str, Any]:
    """The contract of `explain --format json`: one object for one log."""
    facts = status.facts
    verdicts = []
    for verdict in status.verdicts:
        verdicts.append(
            {
                "rule": verdict.rule.id,
                "role": verdict.rule.role,
                "title": verdict.rule.title,
                "explanation": fill(verdict.rule.cause, verdict.names),
                "note": fill(verdict.rule.note, verdict.names) or None,
                "complete": verdict.complete,
                "ranks": list(verdict.ranks),
                "phase": verdict.phase or None,
                "evidence": [
                    {"line": item.line, "text": mask(item.text), "why": item.why} for item in verdict.evidence
                ],
                "remedies": advise(verdict, status, base) if verdict.rule.role == "cause" else [],
                "supersedes": list(verdict.over),
                "fixed_in": fixes(verdict.rule, facts.engine),
                "references": list(verdict.rule.references),
            }
        )
    raised = status.exception
    out: dict[str, Any] = {
        "schema": SCHEMA,
        "source": source,
        "engine": {"name": facts.engine, "version": facts.version, "releases": facts.releases},
        "state": status.state,
        "phase": phase_json(facts),
        "verdicts": verdicts,
        "advice": _advice(status, verdicts, base),
        "exception": None
        if raised is None
        else {
            "type": raised.type,
            "message": mask(raised.message[:4000]),
            "raised_in": raised.raised_in or None,
            "graph_break": _graph_break(raised, base),
            "line": raised.number,
        },
        "fingerprint": status.fingerprint or None,
        "gpu": {"name": facts.gpu, "sm": facts.sm},
        "versions": dict(facts.versions),
        "argv": mask_argv(status.argv) if status.argv else None,
        "lines": status.lines,
        "earlier": [
            {"line": item.line, "state": item.state, "rule": item.rule, "title": item.title} for item in status.earlier
        ],
    }
    if status.restored:
        out["restored"] = list(status.restored)
    if near:
        out["near"] = [{"rule": item.rule, "line": item.line, "failed": mask(item.failed)} for item in status.why_not()]
    return out


def _advice(status: Status, verdicts: list[dict[str, Any]], base: Base) -> list[dict[str, Any]]:
    """What the log itself advises after a failure, each with what is to be said of it."""
    if not status.facts.printed or status.state not in ("crashed", "stalled"):
        return []
    from .core.printed import judge

    remedies: list[Any] = next((each["remedies"] for each in verdicts if each["role"] == "cause"), [])
    return [each._asdict() for each in judge(status, status.cause, remedies, base)]


def _graph_break(raised: Raised, base: Base) -> dict[str, str] | None:
    """The number of a Dynamo failure in PyTorch's graph-break registry, and PyTorch's page on it."""
    found = graph_break(raised, base.graph_breaks) if raised.type.startswith("torch._dynamo.") else None
    return {"id": found[0], "page": found[1]} if found else None


def phase_json(facts: Any) -> dict[str, Any] | None:
    """The current phase as the contract wants it, or None before the first."""
    phase = facts.phase
    if phase is None:
        return None
    return {"id": phase.id, "title": phase.title, "done": phase.done, "total": phase.total}


Paint = Callable[[str, str], str]


def plain(text: str, style: str) -> str:
    """No colours."""
    return text


STYLES = {"bad": "31;1", "good": "32", "warn": "33", "dim": "2", "bold": "1", "add": "32", "remove": "31", "link": "36"}


def coloured(text: str, style: str) -> str:
    """With ANSI colours, for a terminal."""
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m"


def to_text(status: Status, source: str, base: Base, paint: Paint = plain, near: bool = False) -> str:
    """For a person: the verdict in one sentence, its proof, what helps, and the rest folded below."""
    return "\n".join(_text(status, to_json(status, source, base, near=True), paint, near)).rstrip() + "\n"


def _text(status: Status, data: dict[str, Any], paint: Paint, near: bool) -> Iterator[str]:
    yield paint(data["source"], "bold") + "  " + paint(_headline(data), "dim")
    for done in data.get("restored", []):
        yield paint(f"  restored: {done}", "dim")
    for earlier in data["earlier"]:
        what = earlier["rule"] or "no cause named"
        yield paint(f"  an earlier start at line {earlier['line']}: {earlier['state']}, {what}", "dim")
    causes = [verdict for verdict in data["verdicts"] if verdict["role"] == "cause"]
    symptoms = [verdict for verdict in data["verdicts"] if verdict["role"] != "cause"]
    yield ""
    if causes:
        yield from _verdict(causes[0], status, paint)
        others = causes[1:] + symptoms
    else:
        yield from _unknown(data, status, paint)
        others = symptoms
    if data["advice"]:
        yield ""
        yield paint("What the log itself advises", "bold")
        for each in data["advice"]:
            yield f"  line {each['line']}: {each['text']}"
            yield from wrapped(advice_words(each), "    ")
    if others:
        yield ""
        yield paint("Also in this log", "bold")
        for verdict in others:
            kind = "another cause" if verdict["role"] == "cause" else "a consequence"
            line = verdict["evidence"][0]["line"] if verdict["evidence"] else "?"
            yield f"  line {line}: {verdict['title']} " + paint(f"({kind}, {verdict['rule']})", "dim")
    if near and data["near"]:
        yield ""
        yield paint("Rules that came near, and why they do not hold", "bold")
        for item in data["near"]:
            yield f"  {item['rule']} at line {item['line']}: {item['failed']}"


def _headline(data: dict[str, Any]) -> str:
    engine = data["engine"]
    parts = [engine["name"] or "engine not known"]
    if engine["version"]:
        parts[0] += f" {engine['version']}"
    elif engine["releases"]:
        parts[0] += f" {engine['releases']}"
    if data["gpu"]["name"] or data["gpu"]["sm"]:
        parts.append(" ".join(filter(None, (data["gpu"]["name"], data["gpu"]["sm"]))))
    parts.append(data["state"])
    if data["phase"]:
        phase = data["phase"]
        counts = f" {phase['done']}/{phase['total']}" if phase["total"] else ""
        parts.append(f"in {phase['title']}{counts}" if data["state"] != "ready" else phase["title"])
    parts.append(f"{data['lines']} lines")
    return " · ".join(parts)


def _verdict(verdict: dict[str, Any], status: Status, paint: Paint) -> Iterator[str]:
    yield paint(verdict["title"], "bad")
    sure = "" if verdict["complete"] else "  (incomplete: the log does not show all of it)"
    yield paint(f"{verdict['rule']}{sure}", "dim")
    if verdict["ranks"]:
        yield paint(f"on {', '.join(verdict['ranks'][:16])}" + (" …" if len(verdict["ranks"]) > 16 else ""), "dim")
    yield ""
    yield from wrapped(verdict["explanation"])
    if verdict["note"]:
        yield ""
        yield from wrapped(verdict["note"])
    yield ""
    yield paint("Proof", "bold")
    yield from _proof(verdict, status, paint)
    if verdict["fixed_in"]:
        yield ""
        yield _fixed(verdict["fixed_in"], status)
    for place, remedy in enumerate(verdict["remedies"], 1):
        yield ""
        yield from remedy_lines(place, remedy, paint)
    if verdict["references"]:
        yield ""
        yield paint("References", "bold")
        for link in verdict["references"]:
            yield "  " + paint(link, "link")


def _proof(verdict: dict[str, Any], status: Status, paint: Paint) -> Iterator[str]:
    lines = {item["line"]: item for item in verdict["evidence"]}
    around = {
        number for number in status.context if any(abs(number - wanted) <= 1 for wanted in lines) or number in lines
    }
    width = len(str(max([*lines, *around], default=0)))
    previous = None
    for number in sorted(set(lines) | around):
        if previous is not None and number > previous + 1:
            yield paint(f"  {'…':>{width}}", "dim")
        previous = number
        shown = mask(lines[number]["text"] if number in lines else status.context[number])
        shown = shown if len(shown) <= 240 else shown[:237] + "…"
        if number in lines:
            yield f"> {number:>{width}}  {shown}" if paint is plain else paint(f"> {number:>{width}}  {shown}", "warn")
        else:
            yield paint(f"  {number:>{width}}  {shown}", "dim")


def _fixed(releases: Mapping[str, str], status: Status) -> str:
    """In which releases it is fixed, and which of them are installed here, as far as the log tells."""
    facts = status.facts
    fixed = ", ".join(f"{title_of(name)} {version}" for name, version in releases.items())
    known = {**facts.versions}
    if facts.engine and facts.engine not in known and facts.releases:
        known[facts.engine] = facts.releases
    have = ", ".join(f"{title_of(name)} {known[name]}" for name in releases if name in known)
    return f"Fixed in {fixed}; here is {have}." if have else f"Fixed in {fixed}."


SAYS = {
    "right": "right here", "wrong": "does not help here", "gone": "gone in this version", "done": "is so already",
    "tells more": "mends nothing", "open": "nothing is known for or against it here",
}  # fmt: skip


def advice_words(advice: Mapping[str, Any]) -> str:
    """What is to be said of a piece of advice that the log gives, in words."""
    return SAYS[advice["says"]] + (f": {advice['why']}" if advice["why"] else "")


def remedy_lines(place: int, remedy: dict[str, Any], paint: Paint) -> Iterator[str]:
    """One remedy of the JSON contract as lines: its title, the change as a diff or why not, what it costs."""
    yield paint(f"{place}. {remedy['title']}", "bold")
    change = remedy["change"]
    if remedy["blocked"]:
        yield from wrapped(f"Not possible here: {remedy['blocked']}", "   ")
    elif change:
        if change.get("variants"):
            yield paint(f"   on {change['versions']}:", "dim")
        for entry in change["diff"]:
            yield "   " + paint(f"{entry[0]} {entry[1:]}", "add" if entry.startswith("+") else "remove")
        for variant in change.get("variants", []):
            yield paint(f"   on {variant['versions']}:", "dim")
            if variant.get("blocked"):
                yield from wrapped(f"Not possible: {variant['blocked']}", "   ")
            for entry in variant["diff"]:
                yield "   " + paint(f"{entry[0]} {entry[1:]}", "add" if entry.startswith("+") else "remove")
    if remedy["steps"]:
        yield from wrapped(remedy["steps"], "   ")
    notes = [f"cost: {remedy['cost']}"] if remedy["cost"] else []
    notes.append("safe" if remedy["safe"] else "read before you do it")
    notes.append(PROOF[remedy["proof"]])
    yield paint("   " + " · ".join(notes), "dim")


def _unknown(data: dict[str, Any], status: Status, paint: Paint) -> Iterator[str]:
    state = data["state"]
    if state == "ready":
        yield paint("The server is ready; nothing in this log stopped it.", "good")
        return
    if state == "starting":
        yield "Nothing has failed in this log so far." if data["lines"] else "The log is empty."
        return
    if state == "stopped":
        yield "The server was stopped from outside; nothing in this log says that it failed."
        return
    yield paint("Unknown: no rule names the cause. These are the facts.", "warn")
    raised = data["exception"]
    if raised:
        where = f", raised in {raised['raised_in']}" if raised["raised_in"] else ""
        yield f"  exception   {raised['type']} at line {raised['line']}{where}"
        message = raised["message"].strip().split("\n")
        for line in message[:6]:
            yield f"              {line[:200]}"
        if len(message) > 6:
            yield f"              … {len(message) - 6} more lines"
        if raised["graph_break"]:
            yield f"  graph break {raised['graph_break']['id']}: {raised['graph_break']['page']}"
    if data["phase"]:
        yield f"  last phase  {data['phase']['title']}"
    if data["fingerprint"]:
        yield f"  fingerprint {data['fingerprint']}  (the same failure has the same one on every machine)"
    yield ""
    yield f"To turn it into a rule: bringup rules new --from {data['source']}"


def wrapped(text: str, indent: str = "") -> list[str]:
    """Lines of at most WIDTH signs, paragraphs kept."""
    out: list[str] = []
    for paragraph in text.split("\n\n"):
        out += textwrap.wrap(
            " ".join(paragraph.split()), WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False,
            break_long_words=False,
        )  # fmt: skip
    return out


def to_markdown(status: Status, source: str, base: Base, near: bool = False) -> str:
    """For an issue or a chat."""
    data = to_json(status, source, base, near=True)
    out = [f"## {source}", "", f"_{_headline(data)}_", ""]
    causes = [verdict for verdict in data["verdicts"] if verdict["role"] == "cause"]
    if not causes:
        out += list(_unknown(data, status, plain))
        return "\n".join(out).rstrip() + "\n"
    verdict = causes[0]
    out += [f"**{verdict['title']}** (`{verdict['rule']}`{'' if verdict['complete'] else ', incomplete'})", ""]
    out += [verdict["explanation"], "", "```text", *_proof(verdict, status, plain), "```", ""]
    for place, remedy in enumerate(verdict["remedies"], 1):
        out.append(f"{place}. **{remedy['title']}** — {PROOF[remedy['proof']]}")
        if remedy["blocked"]:
            out.append(f"   Not possible here: {remedy['blocked']}")
        elif remedy["change"]:
            out += ["", "   ```diff", *("   " + entry for entry in remedy["change"]["diff"]), "   ```"]
        if remedy["steps"]:
            out.append("   " + " ".join(remedy["steps"].split()))
    out += [""] + [f"- <{link}>" for link in verdict["references"]]
    if near and data["near"]:
        out += ["", "Near rules:"] + [f"- `{item['rule']}`: {item['failed']}" for item in data["near"]]
    return "\n".join(out).rstrip() + "\n"
