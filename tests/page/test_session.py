"""Tokens: asked for, kept for the session of the tab and nowhere else, refused in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from app.web.access import Access, Token, hashed
from tests.page.browser import Opened
from tests.web.harness import FAST, serving

READ, CONTROL = "r" * 30, "c" * 30
GUARDED = Access(tokens=(Token("reader", "read", hashed(READ)), Token("ops", "control", hashed(CONTROL))), rates=FAST)


def test_tokens_are_asked_for_and_kept_for_the_session_only(tmp_path: Path, opened: Opened, chromium: Any) -> None:
    with serving(tmp_path, [["/no/such/engine"]], access=GUARDED, begin=False, token=CONTROL) as running:
        page = opened.page(running.url)
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Token").fill("wrong" * 6)
        page.keyboard.press("Enter")
        dialog.get_by_text("The token was not accepted.").wait_for()
        dialog.get_by_label("Token").fill(READ)
        page.keyboard.press("Enter")
        page.locator(".hero", has_text="Not started").wait_for()

        page.get_by_role("button", name="Start…").click()
        dialog.get_by_text("may only read").wait_for()
        page.keyboard.press("Escape")
        page.reload()
        page.locator(".hero", has_text="Not started").wait_for()

        kept = page.evaluate(
            "() => ({session: {...sessionStorage}, local: {...localStorage}, cookie: document.cookie})"
        )
        assert list(kept["session"].values()) == [READ]
        assert (kept["local"], kept["cookie"], opened.context.cookies()) == ({}, "", [])
        assert READ not in json.dumps(opened.context.storage_state())
        other = opened.page(running.url)
        other.get_by_role("dialog").get_by_label("Token").wait_for()

        page.get_by_role("button", name="Forget the token").click()
        dialog.get_by_label("Token").wait_for()
        assert page.evaluate("() => sessionStorage.length") == 0
        page.keyboard.press("Escape")
        page.get_by_role("heading", name="A token is needed").wait_for()


def test_the_page_is_the_same_for_everybody_and_strict(tmp_path: Path) -> None:
    with serving(tmp_path, [["/no/such/engine"]], access=GUARDED, begin=False) as running:
        answer = running.client.get("/")
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "<script>" not in answer.text
        assert "<style" not in answer.text
        assert "http" not in answer.text.replace("http-equiv", "")
        for path in ("/page/main.js", "/page/style.css", "/page/icon.svg"):
            assert running.client.get(path).status_code == 200
        for path in ("/page/", "/page/../app.py", "/page/%2e%2e/app.py", "/page/index.html", "/page/other.js"):
            assert running.client.get(path).status_code in (401, 404), path
        assert running.client.get("/api/targets/server/log").status_code == 401
