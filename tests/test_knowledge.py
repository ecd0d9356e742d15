"""The rule base as a whole: what the scanner looks for is rare, overlaps are decided, pages are current."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path

import pytest

from app import knowledge
from app.cases import cases, shipped_cases
from app.core.scan import Literals
from app.knowledge import Base, load
from app.pages import rule_page

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def base() -> Base:
    return load(cache=False)


def test_no_literal_of_a_rule_stands_in_ordinary_lines(base: Base) -> None:
    log = (shipped_cases() / "serving-for-hours" / "server.log").read_bytes()
    log = log[log.index(b"ready to roll!") :]
    lines = log.count(b"\n")
    found = Counter(index for _, index in base.literals.find(log))
    often = {base.strings[index]: count for index, count in found.items() if count > max(3, lines // 1000)}
    assert often == {}


def test_what_is_superseded_exists_and_nobody_supersedes_in_a_circle(base: Base) -> None:
    rules = {rule.id: rule for rule in base.rules()}
    for rule in rules.values():
        for other in rule.supersedes:
            assert other.endswith("/*") or other in rules, f"{rule.id} supersedes {other}, which is not there"
            assert other.endswith("/*") or rule.id not in rules[other].supersedes, (
                f"{rule.id} and {other} supersede each other"
            )


def test_every_trigger_is_scanned_for(base: Base) -> None:
    triggered = {way for row in base.triggers.values() for way in row}
    unseen = [base.rule(base.when(way)[0]).id for way in range(len(base.ways)) if way not in triggered]
    assert unseen == []


def test_healthy_logs_get_no_verdict_at_all(base: Base) -> None:
    for case in cases(shipped_cases()):
        if case.cause == "none" and case.origin == "verbatim":
            status = case.status(base)
            assert [verdict.rule.id for verdict in status.verdicts if verdict.rule.role == "cause"] == [], case.name
            assert status.state in ("starting", "ready", "stopped"), case.name


def test_the_rule_pages_are_current(base: Base) -> None:
    folder = ROOT / "docs" / "rules"
    stale = [
        rule.id for rule in base.rules()
        if not (page := folder / rule.area / f"{rule.key}.md").exists() or page.read_text() != rule_page(rule, base)
    ]  # fmt: skip
    assert stale == [], "run `python -m app.pages docs/rules`"
    known = {f"{rule.area}/{rule.key}" for rule in base.rules()}
    there = {f"{path.parent.name}/{path.stem}" for path in folder.glob("*/*.md")}
    assert there == known


def test_causes_that_pass_by_themselves_are_named_as_the_rules_are(base: Base) -> None:
    from app.outcome import TRANSIENT

    known = {rule.id for rule in base.rules()}
    assert set(TRANSIENT) <= known


def test_a_stored_matcher_is_compiled_anew_where_it_cannot_be_read(base: Base) -> None:
    assert Literals([b"needle"], Literals([b"needle"]).dump()).present(b"a needle") == {0}
    broken = load(cache=False)
    broken.stored = b"garbage"
    assert broken.literals.present(b"Traceback (most recent call last)") == base.literals.present(
        b"Traceback (most recent call last)"
    )


def test_the_cache_reads_no_file_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = tmp_path / "cache" / "bringup" / "x.pickle"
    place.parent.mkdir(parents=True)
    place.write_bytes(pickle.dumps("ours"))
    place.chmod(0o600)
    (place.parent / "link").symlink_to(place.name)
    assert knowledge._cached(place) == knowledge._cached(place.parent / "link") == "ours"
    (tmp_path / "server.log").write_bytes(pickle.dumps("not ours"))
    (tmp_path / "server.log").chmod(0o600)
    (place.parent / "out").symlink_to(tmp_path / "server.log")
    assert knowledge._cached(place.parent / "out") is None
    place.write_bytes(b"\x80\x05K\x01K\x02R.")  # a number that is called
    assert knowledge._cached(place) is None
