"""Every case: the label, set by hand, is what bringup says (or it says nothing), and the explanation is the blessed one.

`BLESS=1 pytest tests/test_cases.py` writes the explanations anew; read the difference before you commit it. A wrong verdict
cannot be blessed: the label is compared apart from the snapshot.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from app.cases import NOTHING, Case, cases, shipped_cases
from app.knowledge import Base, load

ALL = list(cases(shipped_cases()))


@pytest.fixture(scope="module")
def base() -> Base:
    base = load(cache=False)
    assert [str(problem) for problem in base.problems] == []
    return base


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_case(case: Case, base: Base) -> None:
    status = case.status(base)
    if case.origin != "inferred":
        assert case.judge(status) in ("right", "silent"), status.cause and status.cause.rule.id
    if not case.complete:
        assert status.cause is None or not status.cause.complete
    explanation = case.explanation(status, base)
    if os.environ.get("BLESS"):
        case.expected.write_text(explanation)
    assert case.expected.read_text() == explanation, "the explanation changed; see the module's docstring"


def test_accuracy_over_all_cases(base: Base) -> None:
    tally = Counter()
    for case in ALL:
        if case.origin != "inferred":
            kind = case.cause if case.cause in NOTHING else "cause"
            tally[kind, case.judge(case.status(base))] += 1
    right, wrong, silent = (tally["cause", outcome] for outcome in ("right", "wrong", "silent"))
    assert right / max(1, right + wrong) >= 0.98
    assert right / max(1, right + wrong + silent) >= 0.9
    assert tally["none", "alarm"] == tally["consequence-only", "alarm"] == 0
