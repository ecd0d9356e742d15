"""A real browser for the tests of the page; they are skipped, and say so, where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.page.browser import ARGUMENTS, CHROMIUM, Opened


@pytest.fixture(scope="package")  # not longer: its event loop must be gone when other tests start theirs
def chromium() -> Iterator[Any]:
    """The browser, started once."""
    api = pytest.importorskip("playwright.sync_api", reason="the page is not tested: playwright is not installed")
    if not Path(CHROMIUM).exists():
        pytest.skip(f"the page is not tested: there is no {CHROMIUM} (Debian: apt-get install chromium)")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Any) -> Iterator[Opened]:
    """Pages in a fresh profile. The test fails when a script failed or the policy stopped something."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    context.set_default_timeout(20_000)
    found = Opened(context)
    yield found
    context.close()
    assert not found.troubles, found.troubles
