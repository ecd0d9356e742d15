"""The command line: `bringup explain | rules | case`. Each command imports what it needs when it runs, so that help is instant."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import __version__

if TYPE_CHECKING:
    from .knowledge import Base

RULES = [
    click.option(
        "--rules", "directories", multiple=True, type=click.Path(path_type=Path), metavar="DIR",
        help="Also use the rules in DIR (may be given again). A rule of the same id replaces the shipped one.",
    ),
    click.option("--disable", multiple=True, metavar="ID", help="Switch a rule off (may be given again)."),
]  # fmt: skip


def with_rules(command: Any) -> Any:
    """Give a command the options that say which rules to use."""
    for option in reversed(RULES):
        command = option(command)
    return command


def knowledge(directories: Sequence[Path], disable: Sequence[str]) -> Base:
    """The rule base; what is wrong in it goes to standard error, the rest is used."""
    from .knowledge import load

    try:
        base = load(directories, disabled=disable, cache="BRINGUP_NO_CACHE" not in os.environ)
    except OSError as error:
        raise click.UsageError(str(error)) from None
    for problem in base.problems:
        click.echo(f"bringup: {problem}", err=True)
    return base


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", prog_name="bringup")
def main() -> None:
    """The doctor for inference servers that do not come up.

    Reads what SGLang, vLLM and their libraries write while they start, names the root cause with its proof in the log, and
    says which flags the installed version accepts to get past it.
    """


@main.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--format", "style", type=click.Choice(["text", "json", "markdown"]), default="text", show_default=True,
    help="json: one object a line, one per file, in the order given.",
)  # fmt: skip
@click.option("--idle", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="How long the log has been silent.")
@click.option("--argv", metavar="COMMAND", help="The command line that was started, where the log does not show it.")
@click.option("--engine-version", metavar="VERSION", help="The engine's version, where the log does not tell it.")
@click.option("--gpu", metavar="SM", help="The GPU's architecture (sm120), where the log does not tell it.")
@click.option("--exit", "exits", metavar="STATUS", help="How the process ended: 2, -9, SIGKILL …")
@click.option("--exit-code", is_flag=True, help="Exit with 1 when a failure was found.")
@click.option("--near", is_flag=True, help="Also show the rules that came near, with the condition that failed.")
@click.option("--color/--no-color", default=None, help="Colours; by default on a terminal only.")
@with_rules
def explain(
    files: tuple[str, ...], style: str, idle: float, argv: str | None, engine_version: str | None, gpu: str | None,
    exits: str | None, exit_code: bool, near: bool, color: bool | None, directories: tuple[Path, ...],
    disable: tuple[str, ...],
) -> None:  # fmt: skip
    """Read the log of a start-up and say what broke, where that is proved, and what to do about it.

    FILE is a log, also as .gz; "-" is standard input. Exit status 0 when every file was read, whatever was found; 2 for a
    usage error or a file that could not be read (the others are still done); with --exit-code, 1 when a failure was found.
    """
    from . import report
    from .explain import Told, explain_source
    from .sources import SourceError

    base = knowledge(directories, disable)
    told = Told.read(argv, engine_version, gpu, exits)
    unreadable = failed = False
    if color is None:
        color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    paint = report.coloured if color else report.plain
    for place, source in enumerate(files):
        problem: SourceError | None = None
        status, problem = explain_source(source, base, told, idle)
        if problem is not None:
            click.echo(f"bringup: {problem}", err=True)
            unreadable = True
            if status is None:
                continue
        assert status is not None
        failed = failed or status.state in ("crashed", "stalled")
        name = "standard input" if source == "-" else source
        if style == "json":
            import json

            click.echo(json.dumps(report.to_json(status, name, base, near), ensure_ascii=False))
        elif style == "markdown":
            click.echo(("\n" if place else "") + report.to_markdown(status, name, base, near), nl=False)
        else:
            click.echo(("\n" if place else "") + report.to_text(status, name, base, paint, near), nl=False, color=True)
    if unreadable:
        sys.exit(2)
    if exit_code and failed:
        sys.exit(1)


@main.group()
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
    width = max(len(rule.id) for rule in shown)
    for rule in shown:
        mark = "" if rule.status == "stable" else " (draft)"
        mark += " (symptom)" if rule.role == "symptom" else ""
        click.echo(f"{rule.id:<{width}}  {rule.title}{mark}")


@rules.command("show")
@click.argument("name", metavar="ID")
@with_rules
def rules_show(name: str, directories: tuple[Path, ...], disable: tuple[str, ...]) -> None:
    """One rule as a person reads it: what it means, how it shows, what helps, what only looks alike."""
    from .pages import rule_page

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
@click.option("--fixtures", type=click.Path(path_type=Path), metavar="DIR", help="Where the cases are (default: fixtures/ of the checkout).")
@with_rules
def rules_check(fixtures: Path | None, directories: tuple[Path, ...], disable: tuple[str, ...]) -> None:
    """Check every rule, its cases and its near misses; report every problem at once, with file and line."""
    from .checking import check_all

    problems, summary = check_all(directories, fixtures)
    for problem in problems:
        click.echo(problem)
    click.echo(summary)
    if problems:
        sys.exit(1)


@rules.command("new")
@click.option("--from", "source", required=True, metavar="LOG", help="The log of the failure.")
@click.option("--id", "name", metavar="AREA/CAUSE-KEY", help="The rule's id (default: made from the exception).")
@click.option("--into", type=click.Path(path_type=Path), metavar="DIR", help="The rules directory to write to (default: rules/ here).")
@click.option("--fixtures", type=click.Path(path_type=Path), metavar="DIR", help="The cases directory to write to (default: fixtures/ here).")
@with_rules
def rules_new(
    source: str, name: str | None, into: Path | None, fixtures: Path | None, directories: tuple[Path, ...],
    disable: tuple[str, ...],
) -> None:  # fmt: skip
    """Turn the failure in LOG into a draft rule and its case."""
    from .authoring import new_rule
    from .sources import SourceError

    try:
        for line in new_rule(source, name, into or Path("rules"), fixtures or Path("fixtures"), knowledge(directories, disable)):
            click.echo(line)
    except (SourceError, FileExistsError, ValueError) as error:
        raise click.UsageError(str(error)) from None


@main.group()
def case() -> None:
    """Logs with a known cause, which prove the rules."""


@case.command("add")
@click.argument("log", metavar="LOG")
@click.option("--name", metavar="NAME", help="The case's name (default: made from the cause).")
@click.option("--cause", required=True, metavar="KEY", help="The cause, labelled by hand: a rule's key, none (healthy) or consequence-only.")
@click.option("--source", "origin_link", default="", help="Where the log is from: a link, or how it was made.")
@click.option("--origin", type=click.Choice(["verbatim", "rebuilt"]), default="verbatim", show_default=True)
@click.option("--fixtures", type=click.Path(path_type=Path), metavar="DIR", help="The cases directory (default: fixtures/ here).")
@click.option("--idle", type=float, default=0.0, metavar="SECONDS", help="How long the log had been silent when it was taken.")
@with_rules
def case_add(
    log: str, name: str | None, cause: str, origin_link: str, origin: str, fixtures: Path | None, idle: float,
    directories: tuple[Path, ...], disable: tuple[str, ...],
) -> None:  # fmt: skip
    """Add LOG as a case: masked, labelled, with the explanation as it is now in expect.txt."""
    from .authoring import add_case
    from .sources import SourceError

    base = knowledge(directories, disable)
    try:
        for line in add_case(log, name, cause, origin_link, origin, fixtures or Path("fixtures"), idle, base):
            click.echo(line)
    except (SourceError, FileExistsError, ValueError) as error:
        raise click.UsageError(str(error)) from None


if __name__ == "__main__":
    main()
