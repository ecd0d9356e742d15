"""Dynamo's failures find their number, by the printed link or by the first line; nothing else does."""

from __future__ import annotations

import pytest

from app.core.graphbreaks import graph_break
from app.core.tracebacks import Raised
from app.knowledge import load

LINKED = "Data-dependent branching\n  Explanation: x\n\n For more details about this graph break, please visit: https://meta-pytorch.github.io/compile-graph-break-site/gb/gb0170.html"


@pytest.mark.parametrize(
    ("kind", "message", "number"),
    [
        ("torch._dynamo.exc.Unsupported", LINKED, "GB0170"),
        ("torch._dynamo.exc.Unsupported", "Attempted to call function marked as skipped\n  Explanation: y", "GB0007"),
        ("torch._dynamo.exc.Unsupported", "call_method UserDefinedObjectVariable(PosixPath)", None),
        ("RuntimeError", "Attempted to call function marked as skipped", None),
    ],
)
def test_the_number(kind: str, message: str, number: str | None) -> None:
    found = graph_break(Raised(kind, message, (), 1), load().graph_breaks)
    assert (found and found[0]) == number
    assert found is None or found[1].endswith(f"gb{number[2:]}.html")
