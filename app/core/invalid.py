"""How knowledge that is not well formed is reported: every problem at once, each with its place."""

from __future__ import annotations

from typing import NamedTuple


class Problem(NamedTuple):
    """One thing wrong in a knowledge file.

    `path` is the place inside the file (`("when", 0, "text")`), `reason` says what is wrong and `remedy` what would be right.
    """

    path: tuple[str | int, ...]
    reason: str
    remedy: str = ""
