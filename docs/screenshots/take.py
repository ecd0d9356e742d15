"""Nothing in; the pictures of the page in this folder, out: `python docs/screenshots/take.py`, from the repository.

It plays `bringup demo` and uses the page in Debian's chromium as a person would.
"""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
STORY = HERE.parents[1] / "fixtures" / "founding-story" / "server.log"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--force-device-scale-factor=1"]
COMMAND = "python -m sglang.launch_server --model-path /models/GLM-5-NVFP4 --tp 4 --enable-piecewise-cuda-graph"


@contextlib.contextmanager
def demo(speed: int) -> Iterator[str]:
    """Where a demonstration is to be seen, while the block runs."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["demo", "story", "--stay", "--fallback", "ask", "--no-tui", "--speed", str(speed)]
    child = subprocess.Popen(
        [sys.executable, "-m", "app.cli", *words, "--listen", f"127.0.0.1:{port}"],
        cwd=HERE.parents[1], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert child.stderr is not None
        for line in child.stderr:
            if "web API at" in line:
                break
        yield f"http://127.0.0.1:{port}/"
    finally:
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=30)


def take(page: Any, name: str, whole: bool = False) -> None:
    """A picture of what is seen, or of the whole page."""
    page.screenshot(path=HERE / f"{name}.png", full_page=whole, animations="disabled")


def main() -> None:
    """Takes them all."""
    with sync_playwright() as playwright, demo(40) as url:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1200, "height": 860}, reduced_motion="reduce")
        page.set_default_timeout(60_000)
        page.goto(url)
        page.locator(".verdict .chip.sure", has_text="Confirmed").wait_for()
        page.locator(".remedy").first.wait_for()
        take(page, "verdict")
        page.get_by_role("button", name="Restart with this…").first.click()
        page.locator("dialog .diff").wait_for()
        page.emulate_media(color_scheme="dark")
        take(page, "restart-dark")
        page.get_by_role("dialog").get_by_role("button", name="Restart", exact=True).click()
        page.locator(".hero[data-state=ready]").wait_for()
        page.emulate_media(color_scheme="light")
        page.get_by_role("button", name="Restart…", exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name="Restart", exact=True).click()
        page.locator(".hero[data-state=starting]").wait_for()
        page.locator(".phase[data-state=running] .note", has_text=re.compile(r"[12]\d of 52 · about")).wait_for()
        take(page, "starting")
        page.locator(".hero[data-state=ready]").wait_for()
        page.locator(".history .badge[data-state=ready]").wait_for()
        page.locator(".history-part").screenshot(path=HERE / "history.png", animations="disabled")
        page.goto(f"{url}#/explain")
        page.get_by_text("What the log may not tell").click()
        page.get_by_label("Command line").fill(COMMAND)
        page.get_by_label("Engine version").fill("0.5.9")
        page.set_input_files("#file", STORY)
        page.locator(".row.marked.cause").wait_for()
        page.locator(".log-part").screenshot(path=HERE / "log.png", animations="disabled")
        page.set_viewport_size({"width": 400, "height": 860})
        page.locator(".result").evaluate("element => element.scrollIntoView()")
        take(page, "narrow")
        browser.close()


if __name__ == "__main__":
    main()
