"""The fallback ladder: what is started next, what never again, and when it ends."""

from __future__ import annotations

import json
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from app.ladder import RETRIES, Ask, Ladder, Launch, Retry, Rung, Start, Stop

ORIGIN = Launch(("engine", "--a", "--b"))


def rung(rule: str, name: str, *argv: str, safe: bool = True) -> Rung:
    return Rung(f"{rule}#{name}", rule, name, Launch(("engine", *argv)), (f"+{' '.join(argv)}",), safe)


def test_a_remedy_that_helps_is_kept_and_the_next_wall_is_not_blamed_on_it() -> None:
    ladder = Ladder("auto")
    first = rung("x/one", "without a", "--b")
    ladder.failed(ORIGIN, "x/one", [first])
    decision = ladder.next()
    assert decision == Start(first, "against x/one")
    second = rung("x/two", "without b")
    ladder.failed(first.launch, "x/two", [second], via=first)
    assert ladder.useless == []
    assert ladder.next() == Start(second, "against x/two")


def test_a_remedy_that_did_not_help_is_not_offered_again() -> None:
    ladder = Ladder("auto")
    one, two = rung("x/one", "without a", "--b"), rung("x/one", "without b", "--a")
    ladder.failed(ORIGIN, "x/one", [one, two])
    ladder.failed(one.launch, "x/one", [one, rung("x/one", "both")], via=one)
    assert ladder.useless == [("x/one", "without a: +--b")]
    decision = ladder.next()
    assert isinstance(decision, Start)
    assert decision.rung is two
    assert decision.reason == "'without a' did not help against x/one"


def test_a_wall_with_nothing_left_goes_back_to_the_one_before() -> None:
    ladder = Ladder("auto")
    one, two = rung("x/one", "without a", "--b"), rung("x/one", "without b", "--a")
    ladder.failed(ORIGIN, "x/one", [one, two])
    ladder.failed(one.launch, "", [], via=one)
    decision = ladder.next()
    assert isinstance(decision, Start)
    assert decision.rung is two
    assert decision.reason == "nothing is left against a failure that no rule names; another way around x/one"


def test_only_safe_remedies_are_taken_without_asking() -> None:
    ladder = Ladder("auto")
    risky = rung("x/one", "risky", "--c", safe=False)
    ladder.failed(ORIGIN, "x/one", [risky])
    decision = ladder.next()
    assert isinstance(decision, Stop)
    assert decision.reason == "what is left needs a person's decision; tried: 1. as given → x/one"
    assert decision.rungs == (risky,)
    ladder.mode = "ask"
    assert ladder.next() == Ask((risky,), "1 to choose from")
    ladder.mode = "off"
    assert ladder.next() == Stop("fallbacks are switched off", (risky,))


def test_a_passing_failure_is_started_again_unchanged_with_longer_pauses_and_not_for_ever() -> None:
    ladder = Ladder("auto", max_attempts=20)
    pauses = []
    for _ in range(RETRIES):
        ladder.failed(ORIGIN, "host/port-in-use", passing="the port may be free in a moment")
        decision = ladder.next()
        assert isinstance(decision, Retry)
        assert decision.launch == ORIGIN
        assert decision.reason == "the port may be free in a moment"
        pauses.append(decision.delay)
    assert pauses == [2.0, 4.0, 8.0, 16.0]
    ladder.failed(ORIGIN, "host/port-in-use", passing="the port may be free in a moment")
    assert isinstance(ladder.next(), Stop)


def test_the_launch_that_was_ready_before_is_the_last_resort() -> None:
    before = rung("", "the launch that became ready last", "--z")
    ladder = Ladder("auto", before=before)
    ladder.failed(ORIGIN, "x/one", [])
    assert ladder.next() == Start(before, "it became ready before")
    ladder.failed(before.launch, "x/one", [], via=before)
    assert isinstance(ladder.next(), Stop)


def test_the_story_says_what_was_tried() -> None:
    ladder = Ladder("auto", max_attempts=2)
    one = rung("x/one", "without a", "--b")
    ladder.failed(ORIGIN, "x/one", [one])
    ladder.failed(one.launch, "x/two", [rung("x/two", "more")], via=one)
    decision = ladder.next()
    assert isinstance(decision, Stop)
    assert decision.reason == (
        "2 attempts of 2 allowed: tried: 1. as given → x/one; 2. without a (+--b) → x/two"
    )  # fmt: skip


RULES = ["x/one", "x/two", "x/three", ""]
FLAGS = st.lists(st.sampled_from(["--a", "--b", "--c", "--d"]), max_size=3, unique=True).map(sorted)


@given(st.data(), st.integers(1, 12))
def test_any_run_ends_and_never_starts_a_launch_twice(data: st.DataObject, most: int) -> None:
    ladder = Ladder("auto", most)
    launch, via, started = ORIGIN, None, [ORIGIN]
    failed_with: dict[tuple[str, str], str] = {}
    for _ in count():
        rule = data.draw(st.sampled_from(RULES))
        offers = []
        if rule:
            for place, words in enumerate(data.draw(st.lists(FLAGS, max_size=4))):
                offers.append(rung(rule, f"{place}", *words, safe=data.draw(st.booleans())))
        if via is not None and via.rule == rule:
            failed_with[via.rule, f"{via.title}: {' '.join(via.diff)}"] = rule
        ladder.failed(launch, rule, offers, via)
        assert Ladder.from_json(json.loads(json.dumps(ladder.to_json()))) == ladder
        decision = ladder.next()
        if isinstance(decision, Stop):
            assert len(started) <= most
            break
        assert isinstance(decision, Start)
        assert decision.rung.safe
        assert decision.rung.launch not in started
        assert (decision.rung.rule, f"{decision.rung.title}: {' '.join(decision.rung.diff)}") not in failed_with
        launch, via = decision.rung.launch, decision.rung
        started.append(launch)
