"""Lines in, records out: where a record begins and ends."""

from __future__ import annotations

import pytest

from app.core.lines import Line
from app.core.records import Record, Records


def grouped(text: str) -> list[Record]:
    records = Records()
    done: list[Record] = []
    for number, line in enumerate(text.strip("\n").split("\n"), 1):
        done += records.add(Line(number, line.rstrip()))
    return done + list(records.flush())


INDENTED = """\
{0}Traceback (most recent call last):
    File "/opt/app/serve.py", line 12, in main
      start()
  {1}: no GPU
"""


@pytest.mark.parametrize("space", ["", "  "])
@pytest.mark.parametrize("kind", ["RuntimeError", "vllm.v1.engine.exceptions.EngineDeadError"])
def test_a_traceback_that_is_indented_as_a_whole_ends_with_its_exception(space: str, kind: str) -> None:
    first, second = grouped(INDENTED.format(space, kind) + "Traceback (most recent call last):\nKeyError: 'x'")
    assert [(record.raised, len(record.lines)) for record in (first, second)] == [(True, 4), (True, 2)]


def test_a_line_of_code_in_an_indented_traceback_does_not_end_it() -> None:
    (record,) = grouped("""
  Traceback (most recent call last):
    File "/opt/app/serve.py", line 12, in main
      raise_error
      result: int = start()
""")
    assert not record.raised
