"""`bringup explain`: logs in, their explanations out."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import click

from .options import knowledge, painter, with_rules


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--format", "style", type=click.Choice(["text", "json", "markdown"]), default="text", show_default=True,
    help="json: one object a line, one per file, in the order given.",
)  # fmt: skip
@click.option(
    "--idle", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="How long the log has been silent."
)
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
    gc.set_threshold(100_000)  # a command that is over in a moment has nothing to collect
    from .. import report
    from ..explain import Told, explain_source
    from ..sources import SourceError

    base = knowledge(directories, disable)
    told = Told.read(argv, engine_version, gpu, exits)
    unreadable = failed = False
    paint = painter(color)
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
    gc.freeze()  # nor at its end
    if unreadable:
        sys.exit(2)
    if exit_code and failed:
        sys.exit(1)
