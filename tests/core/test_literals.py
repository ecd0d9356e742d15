"""Whatever a pattern matches carries one of its required literals: checked on written cases and on generated ones."""

from __future__ import annotations

import itertools
import re

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.literals import ORDINARY, SHORTEST, is_common, required_literals, stems

WRITTEN = [
    # one run of text
    (r"^Load weight begin\. avail mem=(?P<avail_gb>-?\d+(?:\.\d+)?) GB", ("Load weight begin. avail mem=",)),
    # an anchor, a lookahead or a word border between two runs does not part them
    (r"^\bfired(?= up) up and\b ready$", ("fired up and ready",)),
    (r"foo(?!barbaz)(?<=foo)barren", ("foobarren",)),
    # alternatives, all exact or not
    (r"(?:Unsupported|UserError): \d", ("Unsupported: ", "UserError: ")),
    (r"(?:first \d+ thing|second \d+ thing)", ("first ", "second ")),
    (r"(?:needle\d+|haystack\w+)", ("haystack", "needle")),
    # one alternative without any literal spoils the branch
    (r"(?:needle|\d+)", ()),
    (r"(?:needle|\d+) in the hay", (" in the hay",)),
    # optional parts give both ways, and the shorter way alone where it is inside the longer one
    (r"Capture (?:draft )?graph begin", ("Capture draft graph begin", "Capture graph begin")),
    (r"(?:re)?loading", ("loading",)),
    # small classes are spelled out, large ones are gaps
    (r"\[Auto[Tt]uner\]: ", ("[AutoTuner]: ", "[Autotuner]: ")),
    (r"GPU[0-9]needed", ("needed",)),
    # repeats
    (r"(?:abc){2}", ("abcabc",)),
    (r"x+yyyyy", ("xyyyyy",)),
    (r"(?:abcde)+\d", ("abcde",)),
    (r"(?:abcde)*\d", ()),
    (r"(?:abcde){0,3}\d", ()),
    (r"ab{2,}cdefg", ("bcdefg",)),
    # case: only the part that minds it counts
    (r"(?i)needle", ()),
    (r"(?i:needle) Haystack", (" Haystack",)),
    (r"(?i)a(?-i:Needle)", ("Needle",)),
    # line breaks part a literal: each line of a record may carry its own prefix
    (r"Traceback\n  File \"x", ("Traceback",)),
    (r"Traceback[\r\n]later", ("Traceback",)),
    # what only `regex` understands
    (r"(?:needle){e<=1}", ()),
    (r"(?:needle){1<=e<=2} x", ()),
    (r"(?:needle){e}", ()),
    (r"[[:alpha:]]needle", ()),
    (r"\p{Lu}needle", ()),
    (r"[[a-z]--[aeiou]]needle", ()),
    (r"(?<what>needle)s", ("needles",)),
    (r"(?P<n>needles): a|(?P<n>haystack): b", ("haystack: b", "needles: a")),
    # references, conditions, comments, possessive and atomic parts
    (r"(?P<q>['\"])model(?P=q) path", ('"model', "'model")),
    (r"(a)?(?(1)needles|haystack) x", ("haystack x", "needles x")),
    (r"need(?#comment)les", ("needles",)),
    (r"(?>needle)s\d++", ("needles",)),
    # braces that are text in both libraries
    (r"server_args=(?:ServerArgs\(|\{)", ("server_args=ServerArgs(", "server_args={")),
    # too short, nothing, broken
    (r"abcd", ()),
    (r"", ()),
    (r".*", ()),
    (r"(unclosed", ()),
    (r"(?:|needle)", ()),
]


@pytest.mark.parametrize(("pattern", "literals"), WRITTEN, ids=[row[0] or "empty" for row in WRITTEN])
def test_written_patterns(pattern: str, literals: tuple[str, ...]) -> None:
    assert required_literals(pattern) == literals


def test_a_named_group_inside_a_class_is_text() -> None:
    assert required_literals(r"[(?P<x>]\d+needle") == ("needle",)


def test_many_alternatives_are_not_multiplied_without_end() -> None:
    pattern = "".join(f"(?:{a}|{b}{b})" for a, b in ("ab", "cd", "ef", "gh", "ij", "kl", "mn", "op"))
    assert 0 < len(required_literals(pattern)) <= 64


def test_repeats_of_repeats_stay_cheap() -> None:
    pattern = "needle"
    for _ in range(30):
        pattern = f"(?:{pattern}\\d){{8}}"
    assert required_literals(pattern) == ("needle",)


def test_deep_nesting_does_not_raise() -> None:
    assert required_literals("(?:" * 3000 + "needle" + ")" * 3000) in ((), ("needle",))


WORDS = st.text(alphabet="abcdeXYZ =.:[]()*{}é\n", min_size=1, max_size=7)
ATOMS = st.one_of(
    WORDS.map(re.escape),
    st.sampled_from(
        [r"\d+", r"\w", ".", r"[a-c]", r"[^x]", r"[Xx]", r"\s*", "^", "$", r"\b", "(?=a)", "(?!q)", "(?i:ab)"]
    ),
)


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda ways: "(?:" + "|".join(ways) + ")"),
        st.tuples(inner, st.sampled_from(["?", "*", "+", "{2}", "{1,3}", "{0,2}", "+?", "*?", "??", "?+", "++"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
        inner.map(lambda text: f"(?P<NAME>{text})"),
        inner.map(lambda text: f"(?>{text})"),
        inner.map(lambda text: f"(?i:{text})"),
    )


def _numbered(pattern: str) -> str:
    """The pattern with each group named differently."""
    count = itertools.count()
    return re.sub("NAME", lambda _: f"n{next(count)}", pattern)


PATTERNS = st.recursive(ATOMS, _grown, max_leaves=12).map(_numbered)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_every_match_carries_one_of_the_literals(data: st.DataObject) -> None:
    pattern = data.draw(PATTERNS, label="pattern")
    literals = required_literals(pattern)
    assert all(len(text) >= SHORTEST and "\n" not in text for text in literals)
    text = data.draw(st.from_regex(re.compile(pattern)), label="text")
    found = regex.search(pattern, text)
    if literals and found:
        assert any(literal in text for literal in literals), (pattern, text, literals)


@settings(max_examples=200, deadline=None)
@given(WORDS.filter(lambda text: "\n" not in text and len(text) >= SHORTEST and not is_common(text)), ATOMS)
def test_plain_text_is_its_own_literal(word: str, atom: str) -> None:
    literals = required_literals(re.escape(word) + atom)
    assert any(word in literal for literal in literals) or min(map(len, literals)) > len(
        word
    )  # the atom's own is longer


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text("abc ", min_size=1, max_size=24).map(str.encode), max_size=40), st.text("abc ", max_size=60))
def test_every_literal_holds_a_stem(literals: list[bytes], ordinary: str) -> None:
    found = stems(literals, ordinary)
    assert all(any(stem in literal for stem in found) for literal in literals)
    assert len(found) <= len(set(literals))


def test_stems_are_shared_and_keep_away_from_ordinary_lines() -> None:
    literals = [b"is not supported on", b"are not supported by", b"not supported in", b"Decode batch failed"]
    found = stems(literals)
    assert len(found) == 2
    assert not any(stem.decode() in ORDINARY for stem in found)
