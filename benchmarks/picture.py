"""Plays the founding story and writes docs/terminal.svg: the terminal picture at the moment when a remedy is on offer.

Run by hand after a change of app/terminal.py: `python benchmarks/picture.py`.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from rich.console import Console

from app import demo
from app.history import FileHistory
from app.hub import Hub
from app.knowledge import load
from app.outcome import Settings
from app.runs import Run
from app.supervisor import Supervisor
from app.terminal import draw

WHERE = Path(__file__).parent.parent / "docs" / "terminal.svg"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        argv = demo.prepare(demo.DEMOS["story"], Path(folder), 40)
        run = Run.new(Path(folder, "state"), argv, Path.cwd())
        hub = Hub()
        settings = Settings("ask", attended=True, release="0.5.9", gpu="sm120", pace=40)
        supervisor = Supervisor(load(), hub, run, FileHistory(Path(folder, "history.jsonl")), settings)
        thread = threading.Thread(target=supervisor.run)
        thread.start()
        console = Console(record=True, width=112, height=44, force_terminal=True, file=nowhere)
        for news in hub.subscribe(0):
            if news.kind == "ask":
                console.print(draw(hub.status, [], 44))
                break
        supervisor.stop()
        thread.join()
        run.close()
    picture = console.export_svg(title="bringup run -- python -m sglang.launch_server …")
    # The fonts are the reader's own: nothing is fetched from elsewhere to show it.
    WHERE.write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL))


if __name__ == "__main__":
    main()
