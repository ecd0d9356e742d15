"""fixtures/ in, docs/accuracy.md out: how often bringup is right on its own cases, and what peers say of the same logs.

    python -m benchmarks.accuracy > docs/accuracy.md             # seconds; what peers said is read from peers.json
    python -m benchmarks.accuracy --nvrx DIR > docs/accuracy.md  # asks that peer of new logs first; peers.py says how

Figures of logs that no rule had seen stand in unseen.json, a list of {date, set, logs, right, wrong, silent, alarm,
note}: what the first run on them gave, before anything was mended.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from pathlib import Path

from app.cases import NOTHING, Case, cases, shipped_cases
from app.core.advice import advise
from app.core.diagnosis import Status
from app.explain import explain_bytes
from app.knowledge import Base, load

from . import peers

UNSEEN = Path(__file__).parent / "unseen.json"
ORIGINS = ("verbatim", "rebuilt", "inferred")
REPEATS = (
    "arguments", "checkpoint", "dynamo", "kernels-by-architecture", "packages", "quantisation", "shared-memory",
    "speculative", "trtllm",
)  # fmt: skip
"""Areas whose failures come again when the same command is started again on the same machine."""
NEAR = 5
"""Lines between a named line and the evidence that still count as the same place."""


@dataclass
class Told:
    """One case and what bringup makes of it."""

    case: Case
    status: Status
    base: Base

    @cached_property
    def outcome(self) -> str:
        return self.case.judge(self.status)

    @property
    def said(self) -> str:
        """The key of the rule named, or the state where a log without a cause is called crashed."""
        cause = self.status.cause
        return cause.rule.id if cause else self.status.state

    @property
    def kind(self) -> str:
        return self.case.cause if self.case.cause in NOTHING else "cause"

    @cached_property
    def evidence(self) -> str:
        """How sure a rebuilt case's text is; "" where the label does not say."""
        found = re.search(r"^evidence:\s*(\S+)", (self.case.folder / "case.yaml").read_text(), re.MULTILINE)
        return found[1] if found else ""

    @cached_property
    def alone(self) -> Status:
        """What bringup makes of the bytes alone, without the command line or the silence a case may tell."""
        if not self.case.argv and not self.case.idle:
            return self.status
        return explain_bytes([self.case.log.read_bytes()], self.base)

    @cached_property
    def outcome_alone(self) -> str:
        return self.case.judge(self.alone)

    @property
    def again(self) -> bool:
        """Whether the cause is proved and of a kind that the same command repeats."""
        cause = self.alone.cause
        return (
            self.kind == "cause" and self.outcome_alone == "right" and cause is not None and cause.rule.area in REPEATS
        )

    @cached_property
    def lines(self) -> list[str]:
        return self.case.log.read_bytes().decode("utf-8", "replace").split("\n")

    @cached_property
    def proof(self) -> frozenset[int]:
        """The lines that prove the cause."""
        cause = self.alone.cause
        return frozenset(item.line for item in cause.evidence if item.why != "seen") if cause else frozenset()

    def is_consequence(self, number: int) -> bool:
        """Whether a symptom rule holds on this line, in the log or read alone, and no cause does."""
        if number in self.proof:
            return False
        symptoms = [verdict for verdict in self.alone.verdicts if verdict.rule.role == "symptom"]
        if any(item.line == number for verdict in symptoms for item in verdict.evidence):
            return True
        line = explain_bytes([self.lines[number - 1].encode()], self.base)
        return line.cause is None and bool(line.verdicts)


# Figures


def share(part: float, whole: int) -> str:
    """ "97.5 %", or a dash where there is nothing to divide by."""
    return f"{100 * part / whole:.1f} %" if whole else "–"


def interval(part: int, whole: int) -> str:
    """Wilson's 95 % interval of a share."""
    if not whole:
        return "–"
    z, p = 1.96, part / whole
    middle, reach = p + z * z / (2 * whole), z * sqrt(p * (1 - p) / whole + z * z / (4 * whole * whole))
    low, high = ((middle + sign * reach) / (1 + z * z / whole) for sign in (-1, 1))
    return f"{100 * max(0.0, low):.0f}–{100 * min(1.0, high):.0f} %"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """A Markdown table."""
    yield "| " + " | ".join(head) + " |"
    yield "| " + " | ".join("---" for _ in head) + " |"
    for row in rows:
        yield "| " + " | ".join(str(cell) for cell in row) + " |"
    yield ""


HEAD = (
    "logs", "with a cause", "right", "wrong", "silent", "precision", "coverage", "healthy", "alarms",
    "only consequences", "blamed",
)  # fmt: skip


def row(name: str, some: Sequence[Told]) -> list[object]:
    """A group of cases under HEAD."""
    tally = Counter((told.kind, told.outcome) for told in some)
    right, wrong, silent = (tally["cause", outcome] for outcome in ("right", "wrong", "silent"))
    asked = right + wrong + silent
    calm = [part for kind in NOTHING for part in (tally[kind, "right"] + tally[kind, "alarm"], tally[kind, "alarm"])]
    return [name, asked, right, wrong, silent, share(right, right + wrong), share(right, asked), *calm]


def groups(some: Sequence[Told], key: Callable[[Told], str]) -> list[tuple[str, list[Told]]]:
    """Cases by a key, the largest group first."""
    found: dict[str, list[Told]] = defaultdict(list)
    for told in some:
        found[key(told)].append(told)
    return sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0]))


# The page


def prose(text: str, first: str = "", rest: str = "") -> Iterator[str]:
    """A paragraph, filled; `first` begins its first line, `rest` the others."""
    words = " ".join(text.split())
    yield from textwrap.wrap(
        words, 120, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    if not first:
        yield ""


def points(*texts: str) -> Iterator[str]:
    """A list."""
    for text in texts:
        yield from prose(text, "- ", "  ")
    yield ""


def page(all_told: Sequence[Told], base: Base) -> Iterator[str]:
    """docs/accuracy.md, line by line."""
    sure = [told for told in all_told if told.case.origin != "inferred"]
    yield "# How often bringup is right"
    yield ""
    yield "<!-- Generated: python -m benchmarks.accuracy > docs/accuracy.md -->"
    yield ""
    yield from prose(
        f"""{len(all_told)} logs with a label, {len(base.packed)} rules. The logs are in `fixtures/`, each with its
        label in `case.yaml`; `python -m benchmarks.accuracy` counts anew."""
    )
    yield from own_cases(all_told, sure)
    yield from meaning(all_told)
    yield from unseen()
    yield from errors(all_told)
    yield from beside_peers(sure)
    yield from proofs(all_told, base)


def own_cases(all_told: Sequence[Told], sure: Sequence[Told]) -> Iterator[str]:
    """Figures over all cases: by origin, engine and how much of the text is known."""
    yield "## On its own cases"
    yield ""
    by_origin = dict(groups(all_told, lambda told: told.case.origin))
    rows = [row(name, by_origin.get(name, [])) for name in ORIGINS]
    rows.insert(2, row("**verbatim and rebuilt**", sure))
    yield from table(HEAD, rows)
    yield from prose("""*Precision* is right out of all causes named, *coverage* right out of all logs that have a
        cause. An *alarm* is a healthy log in which a cause is named or that is called crashed or stalled. A log
        with *only consequences* shows that a server failed and not why: naming any cause there counts as *blamed*.
        Inferred logs are shown apart here and in the two lists of failures below, and count nowhere else.""")
    causes = [pair for pair in groups(sure, lambda told: told.case.cause) if pair[0] not in NOTHING]
    each = [sum(told.outcome == "right" for told in some) / len(some) for _, some in causes]
    most, some = causes[0]
    yield from prose(f"""The logs with a cause have {len(causes)} different ones, and not equally many logs each:
        `{most}` alone has {len(some)}. With every cause weighed the same, coverage is
        {share(sum(each), len(each))}; {sum(part == 0 for part in each)} causes are named in none of their logs.""")
    yield "By engine (*library*: no server, only the libraries under one):"
    yield ""
    by_engine = groups(sure, lambda told: told.case.engine or "not told")
    yield from table(HEAD, [row(name, some) for name, some in by_engine])
    yield from prose("""Rebuilt logs, by how much of the decisive text the report holds: *verbatim* all of it,
        *partial* a part, *paraphrase* the same in other words, *no-error-line* and *no-decisive-line* what the
        names say, *benign* lines that look bad and are not:""")
    rebuilt = [told for told in sure if told.case.origin == "rebuilt"]
    by_evidence = groups(rebuilt, lambda told: told.evidence or "not told")
    yield from table(HEAD, [row(name, some) for name, some in by_evidence])


def kind_of(source: str) -> str:
    """How the bytes of a verbatim log came about, without what is particular to one."""
    if source.startswith("fixtures/reproduce"):
        return "failures that fixtures/reproduce provokes with real libraries"
    return source.partition(";")[0].partition(" (")[0] if source.startswith("a real start") else source


def meaning(all_told: Sequence[Told]) -> Iterator[str]:
    """How the labels came about, and what the figures do not say."""
    made = Counter(kind_of(told.case.source) for told in all_told if told.case.origin == "verbatim")
    runs = "; ".join(f"{source}: {count}" for source, count in made.most_common())
    wrapped = sum("-wrapped-" in told.case.name for told in all_told)
    yield "## Where the labels come from, and what the figures do not say"
    yield ""
    yield from points(
        f"""**verbatim** – the bytes of a run made for this project ({runs}); {wrapped} of them are one and the same
        run in the forms that loggers, containers, launchers and cut-off copies give it. What was broken on purpose
        is the label, so it is as good as certain. But these runs have no GPU: their failures are those that can be
        brought about without one.""",
        """**rebuilt** – the lines of a public report, mostly an issue, cut as they are there. The label is what its
        thread arrived at, read by hand. Not every thread ends with a fix that somebody tried; a label can be wrong,
        and a few were corrected while rules were written, when a log was read again.""",
        """**inferred** – the decisive line was never seen verbatim; it was put together from a description. Such a
        log proves nothing: its rule rests on the same description.""",
    )
    yield from prose("""**The cases are a sample that the rules were written with.** High figures on them say that
        the rules do what their authors meant and that nothing broke since, not how the next log will fare; only the
        next section says anything about that. Nor is the mix of causes that of the world: people report what
        puzzles them, and what nobody reports is not here. An excerpt in a report has fewer other lines to be misled
        by than a whole log. What remedies are worth is not measured on this page.""")


def unseen() -> Iterator[str]:
    """First-run figures of logs that no rule had seen, as far as unseen.json has some."""
    yield "## Unseen logs"
    yield ""
    yield from prose("""First-run figures: logs labelled by hand that no rule had been tried on, counted before
        anything was mended. Afterwards such logs become cases and count above.""")
    if not UNSEEN.exists():
        yield "None have been counted so far."
        yield ""
        return
    rows: list[list[object]] = []
    for item in json.loads(UNSEEN.read_text()):
        right, wrong, silent, alarm = (int(item.get(name, 0)) for name in ("right", "wrong", "silent", "alarm"))
        named, asked = right + wrong, right + wrong + silent
        precision = f"{share(right, named)} ({interval(right, named)})"
        coverage = f"{share(right, asked)} ({interval(right, asked)})"
        first = [item["date"], item["set"], item["logs"]]
        rows.append([*first, right, wrong, silent, alarm, precision, coverage, item.get("note", "")])
    figures = ("right", "wrong", "silent", "alarm", "precision (95 % interval)", "coverage (95 % interval)")
    yield from table(("date", "set", "logs", *figures, "note"), rows)


def errors(all_told: Sequence[Told]) -> Iterator[str]:
    """Every case it gets wrong, and every one it says nothing of, by name."""
    yield "## What it gets wrong"
    yield ""
    ordered = sorted(all_told, key=lambda told: (ORIGINS.index(told.case.origin), told.case.name))
    bad = [told for told in ordered if told.outcome in ("wrong", "alarm")]
    if all(told.case.origin == "inferred" for told in bad):
        yield from prose("""No verbatim or rebuilt log gets a wrong cause or a false alarm: the tests refuse a
            change that brings one. The others:""")
    rows = [[told.case.name, told.case.origin, f"`{told.case.cause}`", f"`{told.said}`"] for told in bad]
    if rows:
        yield from table(("log", "origin", "label", "bringup says"), rows)
    yield "## Where it says nothing"
    yield ""
    yield "The log has a cause and none is named; the facts are given instead."
    yield ""
    rows = [
        [told.case.name, told.case.origin, f"`{told.case.cause}`", told.case.unexplained or told.evidence]
        for told in ordered
        if told.outcome == "silent"
    ]
    yield from table(("log", "origin", "label", "why, or how much of the decisive text it holds"), rows)


# Peers


@dataclass(frozen=True)
class Peer:
    """Another reader of the same logs: by case, the line it names or None."""

    title: str
    named: Mapping[str, int | None]

    def line(self, told: Told) -> int | None:
        return self.named[told.case.name]

    def names(self, some: Sequence[Told]) -> int:
        """In how many of some logs it names a line at all."""
        return sum(self.line(told) is not None for told in some)


def beside_peers(sure: Sequence[Told]) -> Iterator[str]:
    """The same logs, read by others."""
    yield "## Beside others, on the same logs"
    yield ""
    release, said = peers.kept()
    logs = [told for told in sure if (old := said.get(told.case.name)) and old.log == peers.digest(told.case.log)]
    if logs:
        told_more = sum(told.outcome != told.outcome_alone for told in logs)
        more = len(sure) - len(logs)
        left = f" {more} newer or changed logs were not given to all and are left out of this section." if more else ""
        yield from prose(f"""All read the same {len(logs)} verbatim and rebuilt logs, as bytes and nothing else.
            {told_more} of bringup's answers above need what a case tells besides, a silence or a command line, and
            are lost here.{left}""")
    else:
        yield from prose("""The restart agent of nvidia-resiliency-ext was not asked, because it is not installed
            here; `benchmarks/peers.py` says how to.""")
    asked, logs = bool(logs), logs or list(sure)
    others = [Peer("last exception line", {told.case.name: peers.last_exception(told.lines) for told in logs})]
    if asked:
        lines = {told.case.name: said[told.case.name].line for told in logs}
        others.append(Peer(f"nvidia-resiliency-ext {release} restart agent", lines))
    rows = naming(logs, others)
    if asked:
        rows.append(advice([told for told in logs if told.again], said))
    yield from table(("", "bringup", *(peer.title for peer in others)), rows)
    notes = [
        """*last exception line*: what a person looks at first, the last line that reads like a raised exception
        (`benchmarks/peers.py`).""",
        """The yardstick is ours: the lines that bringup itself gives as proof where its answer is right by the
        label. So it has no figure of its own in those rows, and another line may prove the same.""",
        f"""*The same command repeats*: the cause lies in {", ".join(REPEATS)}. Failures of memory, networks,
        drivers, hosts, tools and downloads are left out, because there a second start may succeed.""",
    ]
    if asked:
        notes.insert(1, about_agent([told for told in logs if told.kind == "cause"], said))
    yield from points(*notes)


def naming(logs: Sequence[Told], others: Sequence[Peer]) -> list[list[object]]:
    """What is named in logs with a cause, healthy ones and those with only consequences: us and every peer."""
    ill, well, undecided = ([told for told in logs if told.kind == kind] for kind in ("cause", *NOTHING))
    ours = Counter(told.outcome_alone for told in ill)
    proved = [told for told in ill if told.outcome_alone == "right"]

    def of_proved(holds: Callable[[Told, int], bool]) -> list[str]:
        counts = [
            sum((line := peer.line(told)) is not None and holds(told, line) for told in proved) for peer in others
        ]
        return ["–", *(share(count, len(proved)) for count in counts)]

    named = [share(len(ill) - ours["silent"], len(ill)), *(share(peer.names(ill), len(ill)) for peer in others)]
    in_proof = of_proved(lambda told, line: line in told.proof)
    nearby = of_proved(lambda told, line: any(abs(line - number) <= NEAR for number in told.proof))
    consequences = of_proved(lambda told, line: told.is_consequence(line))
    right = f"{ours['right']} right, {ours['wrong']} wrong"
    rows: list[list[object]] = [
        [f"{len(ill)} logs with a known cause: the cause is named", right, *("names a line only" for _ in others)],
        ["… anything is named", *named],
        [f"{len(proved)} of them that bringup proves: the line named is part of the proof", *in_proof],
        [f"… stands within {NEAR} lines of the proof", *nearby],
        ["… is a wrapper or a consequence", *consequences],
    ]
    for what, some in (
        ("healthy logs: a failure (by others: a line) is named", well),
        ("logs with only consequences: a cause (by others: a line) is named", undecided),
    ):
        alarms = sum(told.outcome_alone == "alarm" for told in some)
        rows.append([f"{len(some)} {what}", alarms, *(peer.names(some) for peer in others)])
    return rows


def advice(again: Sequence[Told], said: Mapping[str, peers.Advice]) -> list[object]:
    """The row about failures that the same command repeats."""
    remedies = [advise(told.alone.cause, told.alone, told.base) for told in again if told.alone.cause]
    some = sum(bool(each) for each in remedies)
    change = sum(any(remedy["change"] and not remedy["blocked"] for remedy in each) for each in remedies)
    decisions = Counter(said[told.case.name].decision for told in again)
    what = ", ".join(f"{name} {count}" for name, count in decisions.most_common())
    ours = f"a remedy {some}, a changed flag or variable among them {change}"
    return [f"{len(again)} proven failures that the same command repeats: the advice", ours, "none", what]


def about_agent(ill: Sequence[Told], said: Mapping[str, peers.Advice]) -> str:
    """What the restart agent is, and what it says of logs with a cause."""
    decisions = Counter(said[told.case.name].decision for told in ill)
    kinds = Counter(said[told.case.name].failure for told in ill if said[told.case.name].failure)
    all_said = ", ".join(f"{name} {count}" for name, count in decisions.most_common())
    classes = ", ".join(f"`{name}` {count}" for name, count in kinds.most_common(6))
    return f"""*restart agent*: `attribution.restart_agent`, without its optional language model and without a
        history of earlier attempts (given one, it says STOP when the founding case fails for the third time). It
        was made for training jobs and answers whether to start again; it does not set out to say why an inference
        server died, and the line is a by-product. On all {len(ill)} logs with a cause: {all_said}. Its most
        frequent classes of failure: {classes}."""


# Rules


def proofs(all_told: Sequence[Told], base: Base) -> Iterator[str]:
    """How many logs prove each rule."""
    yield "## Which rules are proven by how many logs"
    yield ""
    causes = [rule for rule in base.rules() if rule.role == "cause"]
    symptoms = len(base.packed) - len(causes)
    misses = sum(len(rule.near_misses) for rule in base.rules())
    right = [told for told in all_told if told.outcome == "right" and told.status.cause]
    proven = Counter(told.said for told in right if told.case.origin != "inferred")
    inferred = {told.said for told in right if told.case.origin == "inferred"}
    yield from prose(f"""{len(causes)} rules name a cause, {symptoms} know a consequence. A log proves a rule when
        it is verbatim or rebuilt and the rule is the right answer. Besides, {misses} look-alikes written beside the
        rules must stay silent. A rule without a log is written from a library's source or from a description.""")
    steps = ((10, 10**9, "10 or more"), (5, 9, "5 to 9"), (3, 4, "3 or 4"), (2, 2, "2"), (1, 1, "1"), (0, 0, "none"))
    sets = [(name, [rule for rule in causes if low <= proven[rule.id] <= high]) for low, high, name in steps]
    rows = [[name, len(some), sum(rule.status == "stable" for rule in some)] for name, some in sets]
    yield from table(("logs", "rules", "of them stable"), rows)
    for name, some in sets:
        if not some:
            continue
        yield f"<details><summary>Logs: {name} – rules: {len(some)}</summary>"
        yield ""
        by_area: dict[str, list[str]] = defaultdict(list)
        for rule in sorted(some, key=lambda rule: (-proven[rule.id], rule.id)):
            count = proven[rule.id]
            more = f" ({count})" if count > 2 else " (an inferred log)" if not count and rule.id in inferred else ""
            by_area[rule.area].append(rule.key + more)
        yield from points(*(f"{area}: {', '.join(keys)}" for area, keys in sorted(by_area.items())))
        yield "</details>"
        yield ""


# Running


def note(text: str) -> None:
    print(text, file=sys.stderr)


def ask_agent(all_told: Sequence[Told], folder: Path, python: str) -> None:
    """Give new and changed logs to the restart agent and keep what it says; a plain line where it cannot be run."""
    try:
        number = peers.release(folder)
    except ValueError as error:
        note(f"skipped: {error}")
        return
    if reason := peers.starts(folder, python):
        note(f"skipped: the restart agent does not start with {python}: {reason}")
        return
    before, said = peers.kept()
    if before != number:
        said = {}
    sure = [told.case for told in all_told if told.case.origin != "inferred"]
    said = {case.name: said[case.name] for case in sure if case.name in said}
    known = {(name, row.log) for name, row in said.items()}
    new = [(case.name, case.log) for case in sure if (case.name, peers.digest(case.log)) not in known]
    said.update(peers.ask(folder, python, new))
    peers.keep(number, said)
    note(f"restart agent {number}: asked of {len(new)} logs, {len(said)} known")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvrx", type=Path, metavar="DIR", help="an unzipped nvidia-resiliency-ext wheel")
    parser.add_argument("--nvrx-python", default=sys.executable, metavar="PYTHON", help="one with httpx and pydantic")
    args = parser.parse_args()
    base = load()
    for problem in base.problems:
        note(f"left out: {problem}")
    all_told = [Told(case, case.status(base), base) for case in cases(shipped_cases())]
    if args.nvrx:
        ask_agent(all_told, args.nvrx, args.nvrx_python)
    print("\n".join(page(all_told, base)).rstrip())


if __name__ == "__main__":
    main()
