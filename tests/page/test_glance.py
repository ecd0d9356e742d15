"""What each part of the page says: how far a start is, that it stands still, how sure a verdict is, what helps; and logs
that are dropped or pasted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.attempt import Limits
from app.supervisor import Settings
from tests.edges.replay import FIXTURES, STORY, engine, scene
from tests.edges.servers import free_port
from tests.page.browser import Opened, faults
from tests.web.harness import serving

PIECEWISE = "--enable-piecewise-cuda-graph"
DROP = """([text, name]) => {
    const data = new DataTransfer();
    if (name) data.items.add(new File([text], name));
    else data.setData("text/plain", text);
    const at = document.querySelector("main");
    for (const kind of ["dragover", "drop"]) at.dispatchEvent(new DragEvent(kind, {dataTransfer: data, bubbles: true, cancelable: true}));
}"""


def test_a_bar_is_shown_live_with_the_time_that_is_left(tmp_path: Path, opened: Opened) -> None:
    first, second = tmp_path / "go", tmp_path / "go-on"
    gates = [["(bs=304 ", str(first)], ["(bs=160 ", str(second)]]
    argv = engine(tmp_path, [scene(STORY, exit=-9, gates=gates)], PIECEWISE, port=free_port())
    with serving(tmp_path, [argv]) as running:
        page = opened.page(running.url)
        line = page.locator(".hero .line", has_text="capturing the decode CUDA graphs, 12 of 52")
        line.wait_for()
        assert page.locator(".hero .state").inner_text() == "Starting"
        track = page.locator(".hero .meter")
        share = track.locator(".fill").evaluate("fill => fill.offsetWidth / fill.parentElement.offsetWidth")
        assert share == pytest.approx(12 / 52, abs=0.02)
        phase = page.locator(".phase[data-state=running]", has_text="capturing the decode CUDA graphs")
        phase.get_by_text(re.compile(r"^12 of 52\b")).wait_for()
        assert "May still come: " in page.locator(".timeline .rest").inner_text()
        idle = page.locator('.figure[data-name="idle"]')
        idle.get_by_text(re.compile(r"^[3-9] s ago$")).wait_for()  # the clock runs on while nothing comes
        assert "is normal here" in idle.inner_text()
        assert faults(page) == []
        first.touch()
        page.locator(".hero .line", has_text="capturing the decode CUDA graphs, 27 of 52").wait_for()
        assert page.title() == "Starting – server – bringup"
        second.touch()
        page.locator(".hero[data-state=crashed]").wait_for()


def test_a_start_that_stands_still_is_shown_with_what_its_processes_do(tmp_path: Path, opened: Opened) -> None:
    argv = engine(tmp_path, [scene(STORY, until="(bs=256 ", children=1)], PIECEWISE, port=free_port())
    settings = Settings(mode="ask", release="0.5.9", limits=Limits(silence=0.4, stalled=None))
    with serving(tmp_path, [argv], settings) as running:
        page = opened.page(running.url)
        page.locator(".hero[data-state=stalled]").wait_for()
        page.get_by_text("It stands still while capturing the decode CUDA graphs, 15 of 52.").wait_for()
        page.locator(".phase[data-state=stalled]", has_text="stands still here").wait_for()
        assert "care" in str(page.locator('.figure[data-name="idle"]').get_attribute("class")).split()
        stacks = page.get_by_role("region", name="Trouble")
        stacks.get_by_text(re.compile(r"What its \d process(es)? (is|are) doing")).wait_for()
        stacks.locator("summary").first.click()
        assert faults(page) == []
        page.reload()
        stacks.get_by_text(re.compile(r"What its \d process")).wait_for()
        happened = page.get_by_role("region", name="What happened")
        happened.get_by_text("attempt 1", exact=True).wait_for()
        happened.get_by_text(re.compile(r"^no line for .* in 'capturing the decode CUDA graphs'")).wait_for()


def test_the_verdict_and_what_helps_say_how_far_they_may_be_trusted(tmp_path: Path, opened: Opened) -> None:
    argv = engine(tmp_path, [scene(STORY, exit=-9)], PIECEWISE, port=free_port())
    with serving(tmp_path, [argv]) as running:
        page = opened.page(running.url)
        verdict = page.get_by_role("region", name="Verdict")
        sure = verdict.get_by_role("list", name="How sure this is")
        sure.get_by_text("Confirmed").wait_for()
        assert sure.locator("li").all_inner_texts()[1:] == [
            "all conditions hold", "on TP0, TP1, TP2, TP3", "dynamo/flashinfer-fp4-jit-under-dynamo",
        ]  # fmt: skip
        assert "The process has ended and all of its log was read." in verdict.inner_text()
        assert [text.partition("\n")[0] for text in verdict.locator(".proof li").all_inner_texts()] == ["103", "128"]
        others = verdict.locator("details", has_text="Also in this log: 1 consequence")
        assert others.get_attribute("open") is None, "it is folded below the cause"
        others.locator("summary").click()
        others.get_by_text("a consequence ·").wait_for()
        links = verdict.get_by_role("list", name="References").get_by_role("link")
        assert links.first.get_attribute("href").startswith("https://github.com/")
        assert links.first.get_attribute("rel") == "noreferrer noopener"

        helps = page.get_by_role("region", name="What helps").locator(".remedy")
        first = helps.first.inner_text()
        for words in ("Prefill runs without graphs", "safe to apply as it is", "reproduced by this project", PIECEWISE):
            assert words in first
        assert helps.nth(1).locator(".care").inner_text() == "read before you do it"
        assert helps.last.get_by_role("button", name="Restart with this…").count() == 0, "a person has to do that"

        rows = page.get_by_role("region", name="Lines of the log")
        page.get_by_role("button", name="First failure").click()
        rows.locator(".row.marked.cause.bad", has_text="torch._dynamo.exc.Unsupported").wait_for()
        assert page.locator(".log .map .cause").count() == 2
        assert page.locator(".log .map .symptom").count() >= 1


@pytest.mark.parametrize("name", ["server.log", ""], ids=["a file", "a text"])
def test_a_log_is_dropped(tmp_path: Path, opened: Opened, name: str) -> None:
    with serving(tmp_path, [["/no/such/engine"]], begin=False) as running:
        page = opened.page(running.url + "/#/explain")
        page.get_by_label("The log", exact=True).wait_for()
        page.evaluate(DROP, [STORY.read_text(), name])
        page.locator(".verdict .sentence", has_text="torch.compile traced into FlashInfer's FP4").wait_for()
        page.locator(".status", has_text=f"{name or 'dropped text'} · sglang").wait_for()
        assert page.get_by_role("button", name="Restart with this…").count() == 0
        page.locator(".verdict details", has_text="Why not another cause?").locator("summary").click()
        page.locator(".row.marked.cause", has_text="torch._dynamo.exc.Unsupported").wait_for()


def test_a_pasted_log_is_read_and_another_one_after_it(tmp_path: Path, opened: Opened) -> None:
    healthy = FIXTURES / "founding-story-relaunch" / "server.log"
    with serving(tmp_path, [["/no/such/engine"]], begin=False) as running:
        page = opened.page(running.url + "/#/explain")
        text = page.get_by_label("The log", exact=True)
        for log, said in ((STORY, "torch.compile traced into FlashInfer's FP4"), (healthy, "The server is ready")):
            text.fill(log.read_text())
            page.get_by_role("button", name="Explain", exact=True).click()
            page.locator(".verdict .sentence", has_text=said).wait_for()
        assert page.locator(".remedy").count() == 0, "nothing of the first is left"
        assert faults(page) == []


def test_a_command_is_copied(tmp_path: Path, opened: Opened) -> None:
    with serving(tmp_path, [["/no/such/engine"]], begin=False) as running:
        opened.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=running.url)
        page = opened.page(running.url + "/#/explain")
        page.get_by_text("What the log may not tell").click()
        page.get_by_label("Command line").fill(
            f"python -m sglang.launch_server --model-path '/my models/m' {PIECEWISE} --api-key hidden"
        )
        page.get_by_label("Engine version").fill("0.5.9")
        page.set_input_files("#file", STORY)
        page.get_by_role("button", name="Copy the command").first.click()
        page.get_by_role("button", name="Copied").wait_for()
        copied = page.evaluate("() => navigator.clipboard.readText()")
        assert copied == "python -m sglang.launch_server --model-path '/my models/m' --api-key '***'"
