"""What one log line is, once wrappers, colours and the engine's prefix are taken off."""

from __future__ import annotations

from typing import NamedTuple


class Line(NamedTuple):
    """One readable line.

    `number` is the physical line in the log (1-based, counted by newlines); several lines share one number where a
    progress bar was redrawn with carriage returns or a record was glued to the end of a bar. `text` is the message
    without carrier (docker, journald …), ANSI colours and engine prefix, right-stripped. `rank` is the rank or process
    the prefix names ("TP0 EP0", "Worker_TP1", "rank3"), "" when it names none. `prefixed` tells whether an engine
    prefix was there, which is what starts a new record; `source` is the place the prefix names ("core.py:708"), `time`
    its time as written, `level` its first letter ("E", "W"), "" where the prefix tells none. `wrapped` tells that it goes on
    with the line above, which was too long for the box it was drawn in.
    """

    number: int
    text: str
    rank: str = ""
    time: str = ""
    source: str = ""
    prefixed: bool = False
    level: str = ""
    wrapped: bool = False


GOES_ON = ("W", "I", "D")
"""The levels of a line whose writer goes on after it: what is logged as a warning ended nothing."""
