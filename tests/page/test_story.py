"""The founding crash, watched and restarted by somebody who only has the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.edges.replay import FIXTURES, HEALTHY, STORY, engine, scene
from tests.edges.servers import free_port
from tests.page.browser import Opened, faults, fronted
from tests.web.harness import serving
from tests.web.test_story import UNKNOWN

PIECEWISE = "--enable-piecewise-cuda-graph"
RELAUNCH = FIXTURES / "founding-story-relaunch" / "server.log"


def story(folder: Path) -> tuple[list[str], Path, Path]:
    """(a command line that crashes, the gate before its traceback, the gate before its end)."""
    crash, ends = folder / "may-crash", folder / "may-end"
    gates = [
        ["Capture cuda graph failed", str(crash)],
        ["torch._dynamo.exc.Unsupported", str(crash)],
        ["exit", str(ends)],
    ]
    scenes = [scene(STORY, needs=[PIECEWISE], exit=-9, gates=gates), scene(HEALTHY, health=True)]
    return engine(folder, scenes, PIECEWISE, port=free_port()), crash, ends


def test_the_founding_crash_is_watched_and_restarted(tmp_path: Path, opened: Opened) -> None:
    argv, crash, ends = story(tmp_path)
    with serving(tmp_path, [argv], begin=False) as running:
        page = opened.page(running.url)
        hero = page.locator(".hero")
        hero.get_by_text("Not started").wait_for()
        page.get_by_role("button", name="Start…").click()
        page.get_by_role("dialog").get_by_role("button", name="Start").click()

        page.locator(".hero[data-state=starting]").wait_for()
        page.locator(".phase[data-state=running]", has_text="capturing the prefill (piecewise) CUDA graphs").wait_for()
        done = page.locator(".phase[data-state=done]", has_text="loading the weights")
        assert done.locator(".time").inner_text() == "3:24"
        assert page.locator(".verdict").is_hidden()
        assert page.locator('.figure[data-name="memory-kv_gb"]').inner_text() == "KV cache\n8.66 GB"
        page.reload()
        page.locator(".phase[data-state=running]", has_text="capturing the prefill").wait_for()

        crash.touch()
        verdict = page.locator(".verdict")
        verdict.get_by_text("torch.compile traced into FlashInfer's FP4 kernel build").first.wait_for()
        assert verdict.locator(".chip.sure").inner_text() in ("Early", "Refined")
        assert not ends.exists(), "the verdict is there while the process still runs"
        proof = verdict.locator(".proof li").first
        assert proof.locator(".lineno").inner_text() == "103"
        assert "torch._dynamo.exc.Unsupported: Attempted to call function marked as skipped" in proof.inner_text()
        proof.get_by_role("button").click()
        marked = page.locator(".row.marked.cause")
        marked.wait_for()
        assert "torch._dynamo.exc.Unsupported" in marked.inner_text()
        ends.touch()
        page.locator(".hero[data-state=crashed]").wait_for()
        page.locator(".phase[data-state=failed]", has_text="failed here").wait_for()
        verdict.locator(".chip.sure", has_text="Confirmed").wait_for()
        assert "TP0, TP1, TP2, TP3" in verdict.inner_text()

        before = running.get("/api/targets/server")["run"]
        page.get_by_role("button", name="Restart with this…").first.click()
        dialog = page.get_by_role("dialog")
        dialog.locator(".diff", has_text=PIECEWISE).wait_for()
        assert running.get("/api/targets/server")["run"] == before, "a dry run does nothing"
        dialog.get_by_role("button", name="Restart", exact=True).click()
        page.locator(".hero[data-state=ready]").wait_for()
        assert page.get_by_text("The server answers.").is_visible()
        assert page.locator(".verdict").is_hidden()
        assert page.title() == "Ready – server – bringup"
        assert PIECEWISE not in running.get("/api/targets/server")["argv"]

        page.locator(".history .badge[data-state=ready]").wait_for()
        page.locator(".history > li", has=page.locator("[data-state=crashed]")).get_by_role("link").click()
        page.get_by_role("heading", name=f"Run {before}").wait_for()
        page.locator(".verdict .lineno", has_text="103").click()
        page.locator(".row.marked.cause", has_text="torch._dynamo.exc.Unsupported").wait_for()
        page.get_by_label("with").select_option(index=1)
        page.get_by_role("region", name="Compared").locator(".diff", has_text=PIECEWISE).wait_for()
        with page.expect_download() as download:
            page.get_by_role("button", name="Save the log").click()
        assert Path(download.value.path()).read_bytes().startswith(STORY.read_bytes()[:200])
        page.get_by_role("link", name="← server").click()
        page.locator(".hero[data-state=ready]").wait_for()

        page.get_by_role("button", name="Stop…").click()
        page.get_by_role("dialog").get_by_role("button", name="Stop").click()
        page.locator(".hero[data-state=stopped]").wait_for()


def test_back_to_the_last_good_launch(tmp_path: Path, opened: Opened) -> None:
    crash = scene(STORY, needs=["--mem-fraction-static"], exit=-9)
    argv = engine(tmp_path, [crash, scene(HEALTHY, health=True)], port=free_port())
    with serving(tmp_path, [argv]) as running:
        page = opened.page(running.url)
        page.locator(".hero[data-state=ready]").wait_for()
        back = page.get_by_role("button", name="Back to the last good launch…")
        assert back.count() == 0, "there is no other one"
        running.post("/api/targets/server/restart", {"knobs": {"mem_fraction_static": 0.5}})
        page.locator(".hero[data-state=crashed]").wait_for()
        before = running.get("/api/targets/server")["run"]
        back.click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_text("The launch that became ready on").wait_for()
        dialog.locator(".diff", has_text="--mem-fraction-static 0.5").wait_for()
        assert running.get("/api/targets/server")["run"] == before, "a dry run does nothing"
        dialog.get_by_role("button", name="Restart", exact=True).click()
        page.locator(".hero[data-state=ready]").wait_for()
        assert running.get("/api/targets/server")["argv"] == argv


def test_an_earlier_good_start_is_drawn_behind(tmp_path: Path, opened: Opened) -> None:
    gate = tmp_path / "may-go-on"
    first = scene(
        RELAUNCH, needs=["--mem-fraction-static"], health=True, gates=[["Capture cuda graph begin", str(gate)]]
    )
    argv = engine(tmp_path, [first, scene(RELAUNCH, health=True)], port=free_port())
    with serving(tmp_path, [argv]) as running:
        page = opened.page(running.url)
        page.locator(".hero[data-state=ready]").wait_for()
        assert page.locator(".key").is_hidden(), "there was none before"
        running.post("/api/targets/server/restart", {"knobs": {"mem_fraction_static": 0.8}})
        page.locator(".hero[data-state=starting]").wait_for()
        done = page.locator(".phase[data-state=done]", has_text="loading the weights")
        done.locator(".time", has_text="3:24").wait_for()
        page.get_by_text("as long as it usually takes").wait_for()
        behind, bar = done.locator(".usual").bounding_box(), done.locator(".bar").bounding_box()
        assert behind["width"] == pytest.approx(bar["width"], abs=3), "the same log takes as long"
        coming = page.locator(".phase[data-state=pending]", has_text="capturing the decode CUDA graphs")
        assert coming.locator(".time").inner_text() == "~1:46"
        assert coming.locator(".usual").bounding_box()["width"] > 20
        assert page.locator('.figure[data-name="until"]').inner_text().startswith("Until ready\nabout ")
        figures = page.locator('.figure[data-name="idle"]')
        assert "is normal here" in figures.inner_text()
        assert faults(page) == []
        gate.touch()
        page.locator(".hero[data-state=ready]").wait_for()
        page.locator(".history > li").nth(1).wait_for()
        plot = page.locator(".history .stack").first.locator("span")
        assert plot.count() >= 3, "one piece a phase"


def test_why_it_was_not_another_cause(tmp_path: Path, opened: Opened) -> None:
    argv = engine(tmp_path, [scene(STORY, exit=-9)], PIECEWISE, port=free_port())
    with serving(tmp_path, [argv]) as running:
        page = opened.page(running.url)
        near = page.locator(".verdict details", has_text="Why not another cause?")
        near.locator("summary").click()
        rule = near.locator("li", has_text="distributed/nccl-init-hang")
        rule.get_by_text("idle: silent for").wait_for()
        assert near.locator("li", has_text="dynamo/flashinfer-fp4-jit-under-dynamo").count() == 0
        page.locator(".verdict .chip.sure", has_text="Confirmed").wait_for()
        assert near.get_attribute("open") is not None, "it stays as it was when the verdict is confirmed"
        rule.get_by_role("button").click()
        page.locator(".row.marked").wait_for()


def test_what_the_log_itself_advises_is_judged(tmp_path: Path, opened: Opened) -> None:
    argv = engine(tmp_path, [scene(STORY, exit=-9)], PIECEWISE, port=free_port())
    with serving(tmp_path, [argv]) as running:
        page = opened.page(running.url)
        page.locator(".verdict .chip.sure", has_text="Confirmed").wait_for()
        printed = page.locator(".verdict details", has_text="What the log itself advises")
        printed.locator("summary").click()
        hint = printed.locator("li", has_text="allow_in_graph")
        hint.get_by_text("does not help here").wait_for()
        hint.get_by_role("button").click()
        page.locator(".row.marked").wait_for()


def test_a_failure_that_no_rule_names_is_shown_as_facts(tmp_path: Path, opened: Opened) -> None:
    log = tmp_path / "unknown.log"
    log.write_text(UNKNOWN)
    argv = engine(tmp_path, [scene(log, exit=1)], port=free_port())
    with serving(tmp_path, [argv]) as running:
        page = opened.page(running.url)
        page.locator(".hero[data-state=crashed]").wait_for()
        verdict = page.locator(".verdict")
        verdict.get_by_text("No rule names the cause. These are the facts.").wait_for()
        verdict.get_by_text("house.odd.OddError").first.wait_for()
        assert page.locator(".remedy").count() == 0
        page.get_by_role("button", name="First failure").click()
        page.locator(".row.marked", has_text="nobody has seen this before").wait_for()
        assert faults(page) == []


def test_what_would_fail_again_has_to_be_meant(tmp_path: Path, opened: Opened) -> None:
    argv = engine(tmp_path, [scene(STORY, exit=-9)], PIECEWISE, port=free_port())
    with serving(tmp_path, [argv]) as running:
        page = opened.page(running.url)
        page.locator(".hero[data-state=crashed]").wait_for()
        page.get_by_role("button", name="Repeat the last launch…").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_text("would again").wait_for()
        page.keyboard.press("Escape")
        assert dialog.count() == 0
        tag = running.get("/api/targets/server")["tag"]
        page.get_by_role("button", name="Repeat the last launch…").click()
        dialog.get_by_role("button", name="Do it all the same").click()
        running.until(lambda target: target["tag"] != tag and target["state"] == "crashed", "the second crash")


def test_a_stream_that_breaks_is_told_and_taken_up_again(tmp_path: Path, opened: Opened) -> None:
    argv, crash, ends = story(tmp_path)
    with serving(tmp_path, [argv]) as running, fronted(running.url, "/below/here") as front:
        page = opened.page(front.url)
        page.locator(".phase[data-state=running]", has_text="capturing the prefill").wait_for()
        front.cut()
        banner = page.locator("#connection")
        banner.get_by_text("What is shown is from").wait_for()
        crash.touch()
        ends.touch()
        running.until(lambda target: target["state"] == "crashed")
        assert page.locator(".hero").get_attribute("data-state") == "starting", "it cannot know"
        front.mend()
        page.locator(".hero[data-state=crashed]").wait_for()
        page.locator(".verdict .sentence").wait_for()
        banner.wait_for(state="hidden")
        assert page.locator("#announce").inner_text() != ""


def test_several_targets_are_shown_side_by_side(tmp_path: Path, opened: Opened) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    crash = engine(first, [scene(STORY, exit=-9)], PIECEWISE, port=free_port())
    well = engine(second, [scene(HEALTHY, health=True)], port=free_port())
    with serving(tmp_path, [crash, well]) as running:
        page = opened.page(running.url)
        page.locator(".target[data-state=crashed]", has_text="torch.compile traced into").wait_for()
        page.locator(".target[data-state=ready]", has_text="t1").wait_for()
        assert faults(page) == []
        page.get_by_role("link", name="t0").first.focus()
        page.keyboard.press("Enter")
        page.locator(".hero[data-state=crashed]", has_text="t0").wait_for()
        page.go_back()
        page.locator(".target").nth(1).wait_for()


def test_a_log_that_is_only_followed_offers_commands_to_copy(tmp_path: Path, opened: Opened) -> None:
    def put(target: dict[str, Any]) -> bool:
        return bool(target.get("report"))

    argv = engine(tmp_path, [scene(STORY, exit=-9)], PIECEWISE, port=free_port())
    with serving(tmp_path, [argv]) as running:
        running.until(put)
        running.service.targets["server"] = _Followed(running.served[0])  # type: ignore[assignment]
        page = opened.page(running.url)
        page.locator(".remedy").first.wait_for()
        assert page.get_by_role("button", name="Restart with this…").count() == 0
        assert page.locator(".actions button").count() == 0
        shown = page.locator(".remedy .command pre").first.inner_text()
        assert "--model-path /models/m" in shown
        assert PIECEWISE not in shown


class _Followed:
    """A target that shows what another does and can be asked nothing."""

    kind = "log"
    can = ()

    def __init__(self, served: Any) -> None:
        self.name, self.hub, self.root, self.tag = served.name, served.hub, served.root, "log.1"
