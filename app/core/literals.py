"""A regular expression in, the literal strings out of which at least one stands in every text it matches.

A byte scanner that looks for these strings misses no line that the pattern would match, and looks at little else. The
strings are read off the standard library's own parse tree (`re._parser`); where that tree cannot be trusted for the
`regex` library, whose syntax is larger (fuzzy counts, POSIX classes, nested sets), the answer is "none".
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from re import _parser as parser  # type: ignore[attr-defined]
from re._constants import LITERAL  # type: ignore[import-not-found]
from typing import Any

SHORTEST = 5
"""Literals below this many characters fire too often to be worth a look."""

STEM = 8
"""How many bytes a stem has: what Hyperscan compares at once."""

ORDINARY = """\
[2026-02-20 10:11:12 TP0] Decode batch, #running-req: 1, #token: 10, token usage: 0.22, cuda graph: True, gen throughput (token/s): 1.0, #queue-req: 0
[2026-02-20 10:11:12 TP0] Decode batch. #running-req: 1, #token: 10, token usage: 0.22, npu graph: False, gen throughput (token/s): 1.0, #queue-req: 0,
[2026-02-20 10:11:12 TP0] Prefill batch, #new-seq: 1, #new-token: 28, #cached-token: 0, token usage: 0.01, #running-req: 0, #queue-req: 0, input throughput
[2026-02-20 10:11:12] INFO:     10.0.0.1:50374 - "POST /v1/chat/completions HTTP/1.1" 200 OK
[2026-02-20 10:11:12] INFO:     10.0.0.1:50374 - "POST /v1/completions HTTP/1.1" 200 OK
[2026-02-20 10:11:12] INFO:     10.0.0.1:50374 - "GET /health HTTP/1.1" 200 OK
[2026-02-20 10:11:12] INFO:     10.0.0.1:50374 - "GET /metrics HTTP/1.1" 200 OK
[2026-02-20 10:11:12] INFO:     10.0.0.1:50374 - "GET /v1/models HTTP/1.1" 200 OK
[2026-02-20 10:11:12 TP0] Using default MoE kernel config. Performance might be sub-optimal! Config file not found at E=1,device_name=NVIDIA.json
(APIServer pid=1) INFO 02-20 10:11:12 [loggers.py:127] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 1.0 tokens/s, Running: 1 reqs
(APIServer pid=1) INFO:     10.0.0.1:50374 - "POST /v1/chat/completions HTTP/1.1" 200 OK
  File "/usr/lib/python3/dist-packages/sglang/srt/managers/x.py", line 1, in f
  File "/usr/lib/python3/site-packages/vllm/v1/engine/x.py", line 1, in f
  File "/usr/lib/python3/site-packages/torch/nn/modules/x.py", line 1, in f
device
"""
"""What a healthy server writes thousands of times, and what stands in the frames of any traceback. A literal in here is *common*: no
scanner looks for it, and a pattern with nothing rarer is found only in lines that are read for another reason;
`bringup rules check` refuses such a pattern in a rule."""

GPUS = "device_name=NVIDIA_H100_80GB_HBM3 NVIDIA_A100-SXM4-80GB NVIDIA_B200 NVIDIA_GeForce_RTX_4090 NVIDIA_RTX_PRO_6000 AMD_Instinct_MI300X"
"""GPUs in the names of kernel configurations, which engines name by the hundred."""

_IGNORECASE = int(re.IGNORECASE)
_MOST_STRINGS = 64
_MOST_PRODUCT = 32
_MOST_CLASS = 4
_MOST_COPIES = 8
_MOST_PIECES = 32
_LENGTH_THAT_COUNTS = 24

# `(?P<name>` becomes `(`: `regex` accepts a name twice and `(?<name>` too, the standard parser does not.
_NAMED_GROUP = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?P?<(?![=!])\w+>", re.DOTALL)
# Fuzzy counts `{e<=1}` and POSIX classes `[[:alpha:]]`: `re` reads them as plain text.
_FOREIGN = re.compile(r"(?<!\\)(?:\\\\)*\{[\d<=>+,:\s]*[eids][^}]*\}|\[:\^?\w+:\]")

_Strings = frozenset[str]


class _Gap:
    """A piece of the pattern that matches anything; one of the strings `inside` must be in it, if there are any."""

    __slots__ = ("inside",)

    def __init__(self, inside: _Strings | None = None) -> None:
        self.inside = inside


_Piece = _Strings | _Gap
_EMPTY: _Strings = frozenset(("",))


_KNOWN: dict[str, tuple[str, ...]] = {}


def remember(known: Mapping[str, tuple[str, ...]]) -> None:
    """Take literals (pattern to literals) that were worked out elsewhere: reading them off again costs a start 0.1 s."""
    _KNOWN.update(known)


def required_literals(pattern: str) -> tuple[str, ...]:
    """Strings (sorted, case as written, no line breaks) of which at least one occurs in every match of `pattern`.

    `()` when there is none of `SHORTEST` characters or more, when the pattern ignores case there, or when it uses
    syntax that only `regex` knows. Lookarounds, anchors and comments count as nothing; optional parts and alternatives
    give several strings. The longest string wins over the most frequent place: rare beats early.
    """
    known = _KNOWN.get(pattern)
    if known is None:
        known = _KNOWN[pattern] = _read_off(pattern)
    return known


def _read_off(pattern: str) -> tuple[str, ...]:
    if _FOREIGN.search(pattern):
        return ()
    plain = pattern if "(?P=" in pattern or "(?(" in pattern else _NAMED_GROUP.sub(_anonymous, pattern)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tree = parser.parse(plain)
            best = _best(list(_pieces(tree, int(tree.state.flags))))
    except (re.error, Warning, RecursionError, OverflowError, LookupError):
        return ()
    return tuple(sorted(best)) if best else ()


def is_common(literal: str) -> bool:
    """Whether a literal stands in ordinary lines."""
    return literal in ORDINARY


def is_scanned(literal: str) -> bool:
    """Whether the raw scan looks for a literal: it must be rare and not too short (measured: literals of five characters slow
    the whole scan down by a third). The others are found in lines that are read for another reason."""
    return len(literal) > SHORTEST and not is_common(literal)


def stems(literals: Sequence[bytes], ordinary: str = "") -> list[bytes]:
    """Strings, far fewer than the literals, of which one stands in each literal: where none of them is, no literal is.

    Each is a literal itself or STEM bytes of one, those first that many literals have ("not supp") and that do not stand in
    ordinary lines, ours or those given.
    """
    avoided = set(_windows((ORDINARY + GPUS + ordinary).encode()))
    windows = [_windows(text) for text in literals]
    shared = Counter(window for row in windows for window in set(row) if window not in avoided)
    chosen: set[bytes] = set()
    for text, row in sorted(zip(literals, windows, strict=True), key=lambda pair: len(pair[0])):
        if chosen.isdisjoint(row):
            best = max(row, key=lambda window: shared[window])
            chosen.add(best if shared[best] else text)
    return sorted(chosen)


def _windows(text: bytes) -> list[bytes]:
    """Every STEM bytes in a row; all of a text that is shorter."""
    return [text[at : at + STEM] for at in range(max(1, len(text) - STEM + 1))]


def _anonymous(found: re.Match[str]) -> str:
    text = found[0]
    return "(" if text[0] == "(" else text


def _pieces(nodes: Iterable[tuple[Any, Any]], flags: int) -> Iterator[_Piece]:
    """The parse tree as a flat row: what a piece matches exactly (a few strings), or a gap."""
    plain: list[str] = []  # characters in a row
    for op, argument in nodes:
        # A record's lines may carry a prefix each in the raw bytes, so no literal runs over a line break.
        if op is LITERAL and not flags & _IGNORECASE and argument not in (10, 13):
            plain.append(chr(argument))
            continue
        if plain:
            yield frozenset(("".join(plain),))
            plain.clear()
        match str(op):
            case "IN":
                yield _class(argument, flags)
            case "AT" | "ASSERT" | "ASSERT_NOT":
                yield _EMPTY
            case "SUBPATTERN":
                _, added, removed, inner = argument
                yield from _pieces(inner, (flags | added) & ~removed)
            case "ATOMIC_GROUP":
                yield from _pieces(argument, flags)
            case "BRANCH":
                yield _branch([list(_pieces(way, flags)) for way in argument[1]])
            case "GROUPREF_EXISTS":
                _, yes, no = argument
                yield _branch([list(_pieces(yes, flags)), list(_pieces(no or (), flags))])
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                yield from _repeat(argument, flags)
            case _:  # a LITERAL that is none, ANY, NOT_LITERAL, CATEGORY, GROUPREF, and whatever a later Python adds
                yield _Gap()
    if plain:
        yield frozenset(("".join(plain),))


def _class(members: Sequence[tuple[Any, Any]], flags: int) -> _Piece:
    codes: list[int] = []
    for op, argument in members:
        match str(op):
            case "LITERAL":
                codes.append(argument)
            case "RANGE" if argument[1] - argument[0] < _MOST_CLASS:
                codes.extend(range(argument[0], argument[1] + 1))
            case _:
                return _Gap()
    if flags & _IGNORECASE or len(codes) > _MOST_CLASS or 10 in codes or 13 in codes:
        return _Gap()
    return frozenset(map(chr, codes))


def _repeat(argument: tuple[Any, Any, Any], flags: int) -> Iterator[_Piece]:
    least, most, inner = argument
    row = _joined(list(_pieces(inner, flags)))
    if least == 0:
        exact = _product(row) if most == 1 else None
        yield _Gap() if exact is None else exact | _EMPTY
        return
    if len(row) > _MOST_PIECES:  # repeats of repeats of repeats
        yield _Gap(_best(row))
        return
    copies = min(least, _MOST_COPIES)
    for _ in range(copies):
        yield from row
    if most != copies:
        yield _Gap()
        yield from row  # the last copy is next to what follows; where it is also the first one, both views hold


def _branch(ways: list[list[_Piece]]) -> _Piece:
    exact: set[str] = set()
    for way in ways:
        strings = _product(way)
        if strings is None or len(exact | strings) > _MOST_STRINGS:
            break
        exact |= strings
    else:
        return frozenset(exact)
    needed: set[str] = set()
    for way in ways:
        best = _best(way)
        if best is None:
            return _Gap()
        needed |= best
    return _Gap(_shortest(needed)) if len(needed) <= _MOST_STRINGS else _Gap()


def _product(row: Sequence[_Piece]) -> _Strings | None:
    """Every string the row can match; None when it has a gap or too many."""
    strings = _EMPTY
    for piece in row:
        if isinstance(piece, _Gap) or (len(strings) * len(piece) > _MOST_PRODUCT and len(piece) > 1):
            return None
        strings = frozenset(left + right for left in strings for right in piece)
    return strings


def _best(row: Sequence[_Piece]) -> _Strings | None:
    """The most telling set of strings of which one must be in what the row matches."""
    best: _Strings | None = None
    for strings in _candidates(_joined(row)):
        if min(map(len, strings)) >= SHORTEST and (best is None or _worth(strings) > _worth(best)):
            best = strings
    return best


def _joined(row: Sequence[_Piece]) -> list[_Piece]:
    """The row with neighbours that match one string each made one piece."""
    out: list[_Piece] = []
    for piece in row:
        last = out[-1] if out else None
        if isinstance(piece, frozenset) and isinstance(last, frozenset) and len(piece) == len(last) == 1:
            out[-1] = frozenset((next(iter(last)) + next(iter(piece)),))
        else:
            out.append(piece)
    return out


def _candidates(row: Sequence[_Piece]) -> Iterator[_Strings]:
    """Each run of neighbouring exact pieces, multiplied out while that stays small, and what must be inside a gap."""
    for start, first in enumerate(row):
        if isinstance(first, _Gap):
            if first.inside:
                yield first.inside
            continue
        strings = _EMPTY
        for piece in row[start:]:
            if isinstance(piece, _Gap) or (len(strings) * len(piece) > _MOST_PRODUCT and len(strings) > 1):
                break
            strings = frozenset(left + right for left in strings for right in piece)
            if strings:
                yield _shortest(strings)


def _shortest(strings: Iterable[str]) -> _Strings:
    """The strings without those that contain another one: finding the inner one is enough."""
    kept: list[str] = []
    for text in sorted(set(strings), key=len):
        if not any(other in text for other in kept):
            kept.append(text)
    return frozenset(kept)


def _worth(strings: _Strings) -> tuple[float, int]:
    """Long strings are rare ones; each further alternative costs a little."""
    shortest = min(1 if is_common(text) else len(text) for text in strings)
    return min(shortest, _LENGTH_THAT_COUNTS) - 0.25 * (len(strings) - 1), shortest
