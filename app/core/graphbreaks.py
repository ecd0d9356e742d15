"""An exception that Dynamo raised in, its number in PyTorch's graph-break registry out.

A number is a class of failures, not a cause (GB0007 alone stands for locks, clocks and the environment); it leads to PyTorch's
own page on what was met. From torch 2.9 on the message carries a link; before that, and where the link was cut off, the first
line of the message is looked up (torch 2.8 on prints it verbatim).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from .tracebacks import Raised

LINK = re.compile(r"graph-break-site/gb/gb(?P<number>\d{4})\.html", re.IGNORECASE)
PAGE = "https://meta-pytorch.github.io/compile-graph-break-site/gb/gb{}.html"


def graph_break(raised: Raised, breaks: Mapping[str, str]) -> tuple[str, str] | None:
    """("GB0007", its page) for a `torch._dynamo.exc.Unsupported`, or None; `breaks` maps first lines to numbers."""
    if not raised.type.startswith("torch._dynamo.exc."):
        return None
    found = LINK.search(raised.message)
    number = found["number"] if found else breaks.get(raised.message.partition("\n")[0].strip(), "")[2:]
    return (f"GB{number}", PAGE.format(number)) if number else None
