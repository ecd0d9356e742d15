"""`bringup rules` and `bringup case`: what bringup knows, and the logs that prove it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import FOLDER, knowledge, with_rules

if TYPE_CHECKING:
    from ..core.rules import Rule


@click.group()
def rules() -> None:
    """What bringup knows: list, show, check and write rules."""


@rules.command("list")
@click.option("--area", help="Only this area (dynamo, memory …).")
@with_rules
def rules_list(area: str | None, directories: tuple[Path, ...], disable: tuple[str, ...]) -> None:
    """All rules: id, status, title."""
    base = knowledge(directories, disable)
    shown = [rule for rule in base.rules() if area is None or rule.area == area]
    if not shown:
        raise click.UsageError(f"no area {area!r}; there are: " + ", ".join(sorted({r.area for r in base.rules()})))
    _print_rows(shown)


def _print_rows(shown: Sequence[Rule]) -> None:
    width = max(len(rule.id) for rule in shown)
    for rule in shown:
        mark = "" if rule.status == "stable" else " (draft)"
        mark += " (symptom)" if rule.role == "symptom" else ""
        click.echo(f"{rule.id:<{width}}  {rule.title}{mark}")


@rules.command("search")
@click.argument("words", nargs=-1, required=True)
@with_rules
def rules_search(words: tuple[str, ...], directories: tuple[Path, ...], disable: tuple[str, ...]) -> None:
    """Rules in which all these words stand: in the title, in what the log says, in what helps.

    `bringup rules search no kernel image`; for a whole log there is `bringup explain`.
    """
    from ..pages import search

    found = search(knowledge(directories, disable).rules(), " ".join(words))
    if not found:
        click.echo("no rule has all of these words; try fewer, or give the log to `bringup explain`", err=True)
        raise SystemExit(1)
    _print_rows(found)


@rules.command("show")
@click.argument("name", metavar="ID")
@with_rules
def rules_show(name: str, directories: tuple[Path, ...], disable: tuple[str, ...]) -> None:
    """One rule as a person reads it: what it means, how it shows, what helps, what only looks alike."""
    from ..pages import rule_page

    base = knowledge(directories, disable)
    found = base.find(name)
    if found is None:
        import difflib

        names = [rule.id for rule in base.rules()]
        close = difflib.get_close_matches(name, names, 3) or [other for other in names if name in other][:5]
        raise click.UsageError(f"there is no rule {name!r}" + (f"; did you mean {', '.join(close)}?" if close else ""))
    rule, source = found
    click.echo(rule_page(rule, base))
    click.echo(f"Source: {source}")


@rules.command("check")
@click.option(
    "--fixtures",
    type=FOLDER,
    metavar="DIR",
    help="Where the cases are (default: fixtures/ of the checkout).",
)
@with_rules
def rules_check(fixtures: Path | None, directories: tuple[Path, ...], disable: tuple[str, ...]) -> None:
    """Check every rule, its cases and its near misses; report every problem at once, with file and line."""
    from ..checking import check_all

    problems, summary = check_all(directories, fixtures)
    for problem in problems:
        click.echo(problem)
    click.echo(summary)
    if problems:
        sys.exit(1)


@rules.command("new")
@click.option("--from", "source", required=True, metavar="LOG", help="The log of the failure.")
@click.option("--id", "name", metavar="AREA/CAUSE-KEY", help="The rule's id (default: made from the exception).")
@click.option(
    "--into",
    type=FOLDER,
    metavar="DIR",
    help="The rules directory to write to (default: rules/ here).",
)
@click.option(
    "--fixtures",
    type=FOLDER,
    metavar="DIR",
    help="The cases directory to write to (default: fixtures/ here).",
)
@with_rules
def rules_new(
    source: str, name: str | None, into: Path | None, fixtures: Path | None, directories: tuple[Path, ...],
    disable: tuple[str, ...],
) -> None:  # fmt: skip
    """Turn the failure in LOG into a draft rule and its case."""
    from ..authoring import new_rule

    _tell(new_rule(source, name, into or Path("rules"), fixtures or Path("fixtures"), knowledge(directories, disable)))


def _tell(written: Iterable[str]) -> None:
    """Says what is written while it is; what cannot be written is a usage error."""
    from ..sources import SourceError

    try:
        for line in written:
            click.echo(line)
    except (SourceError, FileExistsError, ValueError) as error:
        raise click.UsageError(str(error)) from None


@click.group()
def case() -> None:
    """Logs with a known cause, which prove the rules."""


@case.command("add")
@click.argument("log", metavar="LOG")
@click.option("--name", metavar="NAME", help="The case's name (default: made from the cause).")
@click.option(
    "--cause",
    required=True,
    metavar="KEY",
    help="The cause, labelled by hand: a rule's key, none (healthy) or consequence-only.",
)
@click.option("--source", "origin_link", default="", help="Where the log is from: a link, or how it was made.")
@click.option("--origin", type=click.Choice(["verbatim", "rebuilt"]), default="verbatim", show_default=True)
@click.option("--fixtures", type=FOLDER, metavar="DIR", help="The cases directory (default: fixtures/ here).")
@click.option(
    "--idle", type=float, default=0.0, metavar="SECONDS", help="How long the log had been silent when it was taken."
)
@with_rules
def case_add(
    log: str, name: str | None, cause: str, origin_link: str, origin: str, fixtures: Path | None, idle: float,
    directories: tuple[Path, ...], disable: tuple[str, ...],
) -> None:  # fmt: skip
    """Add LOG as a case: masked, labelled, with the explanation as it is now in expect.txt."""
    from ..authoring import add_case

    base = knowledge(directories, disable)
    _tell(add_case(log, name, cause, origin_link, origin, fixtures or Path("fixtures"), idle, base))
