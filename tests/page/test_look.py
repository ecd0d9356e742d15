"""What axe finds, what a narrow screen and the keyboard can do, and that nothing is asked of anybody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.edges.replay import STORY, engine, scene
from tests.edges.servers import free_port
from tests.page.browser import Opened, faults, fronted
from tests.web.harness import serving

PIECEWISE = "--enable-piecewise-cuda-graph"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_has_a_serious_fault(tmp_path: Path, opened: Opened, scheme: str) -> None:
    argv = engine(tmp_path, [scene(STORY, exit=-9)], PIECEWISE, port=free_port())
    with serving(tmp_path, [argv]) as running:
        page = opened.page(running.url)
        page.emulate_media(color_scheme=scheme)
        page.locator(".hero[data-state=crashed]").wait_for()
        page.locator(".verdict .chip.sure", has_text="Confirmed").wait_for()
        for each in page.locator("details > summary").all():
            each.click()
        page.locator(".proof .lineno").first.click()
        page.locator(".row.marked").wait_for()
        assert faults(page) == []
        page.get_by_role("button", name="Restart with this…").first.click()
        page.locator("dialog .diff").wait_for()
        assert faults(page) == []
        page.keyboard.press("Escape")
        page.locator(".history a").first.click()
        page.locator(".log-part .row").first.wait_for()
        assert faults(page) == []
        page.get_by_role("link", name="Explain a log").click()
        page.set_input_files("#file", STORY)
        page.locator(".verdict .sentence").wait_for()
        assert faults(page) == []


def test_it_fits_a_narrow_screen(tmp_path: Path, opened: Opened) -> None:
    argv = engine(tmp_path, [scene(STORY, exit=-9)], PIECEWISE, port=free_port())
    with serving(tmp_path, [argv]) as running:
        page = opened.page(running.url)
        page.set_viewport_size({"width": 340, "height": 700})
        page.locator(".hero[data-state=crashed]").wait_for()
        page.locator(".remedy").first.wait_for()
        page.locator(".ranks summary").click()
        page.locator(".ranks label", has_text="TP0").wait_for()
        page.get_by_text("Why not another cause?").click()
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
        box, name = (page.locator(f".ranks label >> {part}").first.bounding_box() for part in ("input", "span"))
        assert name["x"] - (box["x"] + box["width"]) < 20, "a box stands beside its name"
        page.keyboard.press("Escape")
        page.get_by_role("link", name="Explain a log").click()
        page.get_by_role("button", name="Explain", exact=True).wait_for()
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


def test_the_keyboard_alone_gets_to_the_restart_and_back(tmp_path: Path, opened: Opened) -> None:
    argv = engine(tmp_path, [scene(STORY, exit=-9)], PIECEWISE, port=free_port())
    with serving(tmp_path, [argv]) as running:
        asked: list[str] = []
        page = opened.page("about:blank")
        page.on("request", lambda request: asked.append(request.url))
        page.goto(running.url)
        page.locator(".verdict .chip.sure", has_text="Confirmed").wait_for()
        focused = page.locator(":focus")
        for _ in range(60):
            page.keyboard.press("Tab")
            if focused.inner_text() == "Restart with this…":
                break
        page.keyboard.press("Enter")
        page.locator("dialog .diff").wait_for()
        page.keyboard.press("Escape")
        page.locator("dialog").wait_for(state="detached")
        assert focused.inner_text() == "Restart with this…", "back where it was"
        assert all(url.startswith(running.url) for url in asked), asked


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_reference_of_the_api_needs_nothing_and_fits(tmp_path: Path, opened: Opened, scheme: str) -> None:
    with serving(tmp_path, [["/no/such/engine"]], begin=False) as running, fronted(running.url, "/below") as front:
        asked: list[str] = []
        page = opened.page("about:blank")
        page.emulate_media(color_scheme=scheme)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{front.url}docs")
        page.get_by_role("link", name="POST /api/targets/{target}/restart").click()
        page.get_by_text('{"last_good": true}').wait_for()
        page.locator("details > summary").first.click()
        assert faults(page) == []
        page.set_viewport_size({"width": 340, "height": 700})
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
        assert all(url.startswith(front.url) for url in asked), asked
        assert len(asked) >= 3, "the page, its style and its picture"
