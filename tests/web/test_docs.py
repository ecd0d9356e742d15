"""docs/api.md: its lines work, and it names everything that there is."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from app.config import AuthTable, ServiceTable, Table, TargetTable, WebhookTable
from tests.edges.replay import ROOT
from tests.edges.servers import until
from tests.web.harness import serving
from tests.web.test_serve import program

TEXT = (ROOT / "docs" / "api.md").read_text()
CURL = 'curl() { echo "+ curl $*" >&2; command curl --fail-with-body --silent --show-error --max-time 20 "$@"; }\n'


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_lines_of_the_page_work(tmp_path: Path) -> None:
    script = "\n".join(re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))
    words = ("demo", "--fallback", "ask", "--speed", "400", "--stay", "--no-tui", "--listen", "127.0.0.1:0")
    with program(tmp_path, *words) as demo:
        script = script.replace("http://127.0.0.1:8420", demo.url).replace("sleep 1", "sleep 0.1")
        script = script.replace("bundle.tar.gz", str(tmp_path / "bundle.tar.gz"))
        until(lambda: "start" in demo.target()["can"], "the crash of the demo")  # type: ignore[operator]
        done = subprocess.run(["sh", "-euc", CURL + script], capture_output=True, text=True, cwd=ROOT, timeout=100)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        assert '"diff": ["---enable-piecewise-cuda-graph"]'.replace(" ", "") in done.stdout.replace(" ", "")
        with tarfile.open(tmp_path / "bundle.tar.gz") as archive:
            assert len(archive.getnames()) == 3
        assert demo.end() == 0


def test_every_route_is_on_the_page(tmp_path: Path) -> None:
    with serving(tmp_path, [["true"]], begin=False) as running:
        paths = running.get("/openapi.json")["paths"]
    shown = re.sub(r"\$API", "/api", TEXT)
    for path in paths:
        pattern = re.sub(r"\\\{\w+\\\}", r"[\\w{}$-]+", re.escape(path))
        if "/log" not in path.partition("/api/targets/")[2]:  # what the page of the browser asks
            assert re.search(pattern + r"(?![\w/])", shown) or re.search(
                r"`/" + path.rpartition("/")[2] + "`", shown
            ), path


@pytest.mark.parametrize("table", [ServiceTable, AuthTable, TargetTable, WebhookTable])
def test_every_key_of_the_file_is_on_the_page(table: type[Table]) -> None:
    for name in table.model_fields:
        assert re.search(rf"[`.]{name.replace('_', '-')}`", TEXT), name
