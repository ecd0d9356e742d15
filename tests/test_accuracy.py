"""The accuracy benchmark: what the plain peer names, and that the page can be made from the cases there are."""

from __future__ import annotations

import pytest

from benchmarks import peers
from benchmarks.accuracy import interval, share, table


@pytest.mark.parametrize(
    ("line", "raised"),
    [
        ("RuntimeError: no kernel image", True),
        ("torch.OutOfMemoryError: CUDA out of memory.", True),
        ("(EngineCore_0 pid=7) ERROR 05-26 13:23:48 [core.py:396] ValueError: no blocks", True),
        ("[rank0]: AssertionError", True),
        ("\x1b[31mtorch._dynamo.exc.Unsupported: call of a skipped function\x1b[0m", True),
        ("2026-02-20T10:11:12Z stderr F OSError: gone", True),
        ("[core.py:396]     except KeyError:", False),
        ("    raise ValueError(", False),
        ("Traceback (most recent call last):", False),
        ("0 errors: none", False),
    ],
)
def test_last_exception_line(line: str, raised: bool) -> None:
    assert peers.last_exception(["start", line, "INFO: end"]) == (2 if raised else None)


def test_what_a_peer_said_is_kept(tmp_path) -> None:
    log, path = tmp_path / "server.log", tmp_path / "peers.json"
    log.write_text("RuntimeError: no\n")
    said = {"case": peers.Advice(peers.digest(log), "RESTART", "general_retry_available", "observed_exception", 1)}
    assert peers.kept(path) == ("", {})
    peers.keep("0.7.0", said, path)
    assert peers.kept(path) == ("0.7.0", said)


def test_figures() -> None:
    assert share(39, 40) == "97.5 %"
    assert share(0, 0) == interval(0, 0) == "–"
    assert interval(98, 100) == "93–99 %"
    assert list(table(("a", "b"), [[1, 2]])) == ["| a | b |", "| --- | --- |", "| 1 | 2 |", ""]
