"""The log view: whatever a line holds stays text, and a million lines scroll."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.edges.replay import STORY, engine, scene
from tests.edges.servers import free_port
from tests.page.browser import Opened, faults
from tests.web.harness import Running, serving

PIECEWISE = "--enable-piecewise-cuda-graph"
HOSTILE = [
    "<script>document.title='hacked'</script>",
    "<img src=x onerror=\"document.title='hacked'\">&amp;",
    "\x1b[31mred\x1b[0m and \x1b]8;;http://example.com\x07a link\x1b]8;;\x07 \x07bell",
    "user \u202ednuora\u202c the \u2066other\u2069 way, \u200bhidden",
    "10% of it\r20% of it\r30% of it",
    "--api-key sk-abcdefghijklmnopqrstuvwxyz",
    "javascript:alert(1) " + "x" * 1_000_000,
    "the last line",
]


def showing(running: Running, log: Path) -> None:
    """Has the target show this log."""
    running.hub.status = {**running.hub.status, "log": str(log), "state": "starting"}


def row(page: Any, number: int) -> Any:
    return page.locator(f'.row:has(.no:text-is("{number}"))')


def test_a_hostile_log_stays_text(tmp_path: Path, opened: Opened) -> None:
    log = tmp_path / "hostile.log"
    log.write_bytes("\n".join(HOSTILE).encode() + b"\n\xff\xfe broken\n")
    with serving(tmp_path, [["/no/such/engine"]], begin=False) as running:
        showing(running, log)
        page = opened.page(running.url)
        row(page, 9).wait_for()
        texts = [row(page, number).locator(".text").inner_text() for number in range(1, 10)]
        assert texts[:2] == HOSTILE[:2]
        assert texts[2] == "red and a link ␇bell"
        assert texts[3] == "user ‹U+202E›dnuora‹U+202C› the ‹U+2066›other‹U+2069› way, ‹U+200B›hidden"
        assert texts[4:6] == ["30% of it", "--api-key ***"]
        assert len(texts[6]) < 2100
        assert texts[6].endswith("(1,000,020 in all)")
        assert texts[8].endswith(" broken")
        assert page.locator(".log script, .log img, .log a").count() == 0
        assert "hacked" not in page.title()

        page.get_by_role("link", name="Explain a log").click()
        page.get_by_label("The log", exact=True).fill("\n".join(HOSTILE))
        page.get_by_role("button", name="Explain", exact=True).click()
        row(page, 8).wait_for()
        assert row(page, 1).locator(".text").inner_text() == HOSTILE[0]
        assert page.locator("main script, main img").count() == 0
        assert "hacked" not in page.title()


def test_a_million_lines_scroll_and_are_searched(tmp_path: Path, opened: Opened) -> None:
    log = tmp_path / "long.log"
    lines = [f"line {number}" for number in range(1, 1_000_001)]
    lines[654_320] = "here is the Needle"
    log.write_text("\n".join(lines) + "\n")
    with serving(tmp_path, [["/no/such/engine"]], begin=False) as running:
        showing(running, log)
        page = opened.page(running.url)
        row(page, 1_000_000).wait_for()
        port = page.get_by_role("region", name="Lines of the log")
        assert page.locator(".row").count() < 100
        port.evaluate("port => { port.scrollTop = (port.scrollHeight - port.clientHeight) / 2 }")
        row(page, 500_000).get_by_text("line 500000").wait_for()
        assert page.locator(".row").count() < 100
        page.get_by_role("button", name="Follow").wait_for()

        page.get_by_role("searchbox").fill("NEEDLE")
        page.get_by_text("1 match", exact=True).wait_for()
        page.keyboard.press("Enter")
        marked = page.locator(".row.marked")
        marked.get_by_text("here is the Needle").wait_for()
        assert marked.locator("mark").inner_text() == "Needle"
        page.get_by_role("searchbox").fill("99999")
        page.get_by_text("19 matches", exact=True).wait_for()
        page.get_by_role("button", name="Only these").click()
        page.locator(".row").nth(18).wait_for()
        page.locator(".row", has_text="line 899999").wait_for()
        texts = page.locator(".row .text").all_inner_texts()
        assert texts == [f"line {number}" for number in range(1, 1_000_001) if "99999" in str(number)]
        page.get_by_role("button", name="All lines").click()
        port.focus()
        page.keyboard.press("Home")
        row(page, 1).get_by_text("line 1", exact=True).wait_for()
        page.keyboard.press("End")
        row(page, 1_000_000).get_by_text("line 1000000").wait_for()


def test_a_paused_log_stands_still(tmp_path: Path, opened: Opened) -> None:
    log = tmp_path / "grows.log"
    log.write_text("".join(f"line {number}\n" for number in range(1, 301)))
    with serving(tmp_path, [["/no/such/engine"]], begin=False) as running:
        showing(running, log)
        page = opened.page(running.url)
        row(page, 300).wait_for()
        with log.open("a") as file:
            file.write("more\n")
        row(page, 301).get_by_text("more").wait_for()
        page.get_by_role("button", name="Pause").click()
        with log.open("a") as file:
            file.write("even more\nand more\n")
        page.get_by_role("button", name="Follow (2 new)").wait_for()
        assert row(page, 302).count() == 0
        page.get_by_role("button", name="Follow (2 new)").click()
        row(page, 303).get_by_text("and more").wait_for()
        page.get_by_role("button", name="Pause").click()
        other = tmp_path / "other.log"
        other.write_text("another log\n")
        other.replace(log)
        row(page, 1).get_by_text("another log").wait_for()
        page.get_by_role("button", name="Pause").wait_for()


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_is_explained_and_not_kept(tmp_path: Path, opened: Opened, packed: bool) -> None:
    import gzip

    file = tmp_path / ("server.log.gz" if packed else "server.log")
    file.write_bytes(gzip.compress(STORY.read_bytes()) if packed else STORY.read_bytes())
    with serving(tmp_path, [["/no/such/engine"]], begin=False) as running:
        page = opened.page(running.url + "/#/explain")
        page.get_by_text("What the log may not tell").click()
        page.get_by_label("Command line").fill(
            "python -m sglang.launch_server --model-path /m --enable-piecewise-cuda-graph"
        )
        page.get_by_label("Engine version").fill("0.5.9")
        page.set_input_files("#file", file)
        verdict = page.locator(".verdict")
        verdict.get_by_text("torch.compile traced into FlashInfer's FP4 kernel build").first.wait_for()
        assert (
            page.locator(".remedy .command pre")
            .first.inner_text()
            .startswith("python -m sglang.launch_server --model-path /m")
        )
        page.locator(".row.marked.cause", has_text="torch._dynamo.exc.Unsupported").wait_for()
        left = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
        assert not any(b"Unsupported" in path.read_bytes() for path in left)


def boxes(page: Any) -> list[str]:
    """What the rank filter offers, with how many lines."""
    return [" ".join(text.split()) for text in page.locator(".ranks label").all_inner_texts()]


def test_only_the_lines_of_some_ranks_are_shown(tmp_path: Path, opened: Opened) -> None:
    log = tmp_path / "ranks.log"
    lines = ["[2026-02-20 10:11:12] server_args=ServerArgs(model_path='/m')"]
    lines += [f"[2026-02-20 10:11:20 TP{number % 4}] line {number}" for number in range(40_000)]
    lines += ["[2026-02-20 10:11:29 TP2] Scheduler hit an exception: Traceback (most recent call last):"]
    lines += ['  File "/opt/scheduler.py", line 7, in run', "ValueError: no rank of its own"]
    log.write_text("\n".join(lines) + "\n")
    with serving(tmp_path, [["/no/such/engine"]], begin=False) as running:
        showing(running, log)
        page = opened.page(running.url)
        row(page, len(lines)).wait_for()
        page.locator(".ranks summary").focus()
        page.keyboard.press("Enter")
        page.get_by_role("group", name="Show only the lines of").wait_for()
        page.wait_for_function("() => document.querySelectorAll('.ranks label').length === 5")
        page.wait_for_function("() => document.querySelector('.ranks [role=status]').textContent === ''")
        assert boxes(page) == ["TP0 10,000", "TP1 10,000", "TP2 10,003", "TP3 10,000", "no rank 1"]
        page.keyboard.press("Tab")
        for _ in range(2):
            page.keyboard.press("Tab")
        page.keyboard.press("Space")
        page.get_by_text("10,003 of 40,004 lines", exact=True).wait_for()
        assert faults(page) == []
        page.locator(".row", has_text="ValueError: no rank of its own").wait_for()
        assert not [text for text in page.locator(".row .text").all_inner_texts() if " TP1]" in text]
        page.get_by_label("no rank").check()
        page.get_by_text("10,004 of 40,004 lines", exact=True).wait_for()
        page.keyboard.press("Escape")
        assert page.locator(".ranks summary:focus").inner_text() == "Ranks: TP2, no rank"
        assert page.locator(".ranks[open]").count() == 0

        with log.open("a") as file:
            file.write("[2026-02-20 10:12:00 TP1] not this one\n[2026-02-20 10:12:01 TP2] but this one\n")
        page.locator(".row", has_text="but this one").wait_for()
        assert page.locator(".row", has_text="not this one").count() == 0
        page.get_by_role("searchbox").fill("line 12")
        both = [number for number in range(2, 40_000, 4) if str(number).startswith("12")]
        page.get_by_text(f"{len(both)} matches", exact=True).wait_for()
        page.get_by_role("searchbox").fill("")
        page.locator(".ranks summary").click()
        page.get_by_role("button", name="All ranks").click()
        page.locator(".row", has_text="not this one").wait_for()
        assert page.locator(".ranks summary").inner_text() == "Ranks: all"


def test_a_run_with_a_log_of_any_size_is_looked_at_and_sent(tmp_path: Path, opened: Opened) -> None:
    argv = engine(tmp_path, [scene(STORY, exit=-9)], PIECEWISE, port=free_port())
    with serving(tmp_path, [argv]) as running:
        target = running.until(lambda target: target["state"] == "crashed" and "start" in target["can"], "the crash")
        (attempt,) = running.get(f"/api/runs/{target['run']}")["attempts"]
        whole = Path(attempt["log"]).read_bytes()
        lines = whole.count(b"\n")
        with Path(attempt["log"]).open("ab") as file:  # 70 MiB more: a server that talked for days
            page_of = b"".join(b"%0255d\n" % number for number in range(4096))
            for _ in range(70):
                file.write(page_of)
        asked: list[str] = []
        page = opened.page(running.url)
        page.on("request", lambda request: asked.append(request.url))
        page.locator(".history a").first.click()
        page.get_by_text(f"{lines + 286_720:,} lines", exact=True).wait_for()
        page.locator(".verdict .lineno", has_text="103").click()
        page.locator(".row.marked.cause", has_text="torch._dynamo.exc.Unsupported").wait_for()
        page.get_by_role("region", name="Lines of the log").focus()
        page.keyboard.press("End")
        row(page, lines + 286_720).get_by_text("4095").wait_for()
        assert page.locator(".row").count() < 100
        assert not [url for url in asked if "raw=" in url], "only what is looked at is asked for"
        page.get_by_role("searchbox").fill("hit an exception")
        page.get_by_text("4 matches", exact=True).wait_for()

        with page.expect_download(timeout=120_000) as download:
            page.get_by_role("button", name="Save a bundle for an issue").click()
        assert download.value.suggested_filename == f"{target['run']}.tar.gz"
        with tarfile.open(download.value.path()) as archive:
            names = [name.partition("/")[2] for name in archive.getnames()]
            packed = archive.extractfile(f"{target['run']}/attempt-1.log")
            assert packed is not None
            text = packed.read()
        assert names == ["run.json", "attempt-1.md", "attempt-1.log"]
        assert text.startswith(whole[:10_000])
        assert b" bytes are left out here " in text
        assert len(text) < 40 << 20
