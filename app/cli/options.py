"""What commands have in common: options, the rule base that they name, and colours."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..knowledge import Base
    from ..report import Paint

FOLDER = click.Path(path_type=Path)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Every news as one JSON object a line.")
STATE_DIR = click.option(
    "--state-dir", type=FOLDER, metavar="DIR",
    help="Where runs, logs and the history are kept (default: $XDG_STATE_HOME/bringup).",
)  # fmt: skip
DATABASE = click.option(
    "--database-url", envvar="BRINGUP_DATABASE_URL", metavar="URL",
    help="A PostgreSQL data base for the history, which several machines may share, instead of a file in the state "
    "directory. A password is better put into BRINGUP_DATABASE_URL: others see command lines.",
)  # fmt: skip
TEXT_OR_JSON = click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
TIMEOUT = click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Seconds for each question."
)
RULES = [
    click.option(
        "--rules", "directories", multiple=True, type=FOLDER, metavar="DIR",
        help="Also use the rules in DIR (may be given again). A rule of the same id replaces the shipped one.",
    ),
    click.option("--disable", multiple=True, metavar="ID", help="Switch a rule off (may be given again)."),
]  # fmt: skip


def with_options(*rows: Sequence[Any]) -> Callable[[Any], Any]:
    """Give a command these options, in this order."""

    def give(command: Any) -> Any:
        for option in reversed([option for row in rows for option in row]):
            command = option(command)
        return command

    return give


with_rules = with_options(RULES)
"""Gives a command the options that say which rules to use; `knowledge` takes them."""


def knowledge(directories: Sequence[Path], disable: Sequence[str]) -> Base:
    """The rule base; what is wrong in it goes to standard error, the rest is used."""
    from ..knowledge import load

    try:
        base = load(directories, disabled=disable, cache="BRINGUP_NO_CACHE" not in os.environ)
    except OSError as error:
        raise click.UsageError(str(error)) from None
    for problem in base.problems:
        click.echo(f"bringup: {problem}", err=True)
    return base


def painter(wanted: bool | None = None) -> Paint:
    """Writes text in colour or plain: as wanted, by default in colour on a terminal only."""
    from ..report import coloured, plain

    if wanted is None:
        wanted = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return coloured if wanted else plain
