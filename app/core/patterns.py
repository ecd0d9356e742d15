"""The patterns of knowledge files as text in, compiled patterns of the `regex` module out: each once, and on first use.

Compiling one takes a quarter of a millisecond, unpacking one that was compiled before a fiftieth of that: who keeps
files between two runs (app/knowledge.py) gives back here what it was given.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

TIMEOUT = 0.25
"""Seconds one pattern may take on one record before it counts as not found."""

Key = tuple[str, bool]
"""A pattern and whether its ^ and $ stand at the ends of lines too."""

_ready: dict[Key, Any] = {}
_packed: dict[Key, bytes] = {}
_fresh: set[Key] = set()


def compiled(pattern: str, lines: bool = False) -> Any:
    """The pattern, ready to search; with `lines`, ^ and $ stand at the ends of lines too. Raises regex.error."""
    key = pattern, lines
    found = _ready.get(key)
    if found is None:
        packed = _packed.get(key)
        if packed is not None:
            found = pickle.loads(packed)
        else:
            import regex

            found = regex.compile(pattern, regex.MULTILINE if lines else 0)
        _ready[key] = found
        if packed is None:
            _fresh.add(key)
    return found


def search(pattern: str, text: str) -> Any:
    """Like re.search with re.MULTILINE, None after TIMEOUT seconds."""
    try:
        return compiled(pattern, True).search(text, timeout=TIMEOUT, concurrent=False)
    except TimeoutError:
        return None


def unpack(packed: Mapping[Key, bytes]) -> None:
    """Takes what `pack` gave in an earlier run of the same Python and `regex`. It is unpickled: it must be our own."""
    _packed.update(packed)


def pack() -> dict[Key, bytes]:
    """Everything compiled so far, by this run and those before; empty when this run has added nothing."""
    fresh = list(_fresh)  # another thread may be compiling
    _packed.update({key: pickle.dumps(_ready[key], pickle.HIGHEST_PROTOCOL) for key in fresh})
    _fresh.difference_update(fresh)
    return dict(_packed) if fresh else {}
