"""`bringup serve`, and the API of `bringup run` and `demo`, as processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from sqlalchemy import create_engine, text
from sqlalchemy.exc import ProgrammingError

from app.targets.processes import look
from app.web.access import hashed, new_token
from tests.edges.replay import HEALTHY, ROOT, STORY, engine, scene, sweep
from tests.edges.servers import free_port, until
from tests.web.postgres import Postgres
from tests.web.test_webhooks import listening

PIECEWISE = "--enable-piecewise-cuda-graph"
CAUSE = "dynamo/flashinfer-fp4-jit-under-dynamo"


@dataclass
class Program:
    """A bringup that runs. `url` is its API's."""

    process: subprocess.Popen[str]
    url: str
    folder: Path

    def ask(self, method: str, path: str, **more: object) -> httpx.Response:
        return httpx.request(method, self.url + path, trust_env=False, timeout=20, **more)  # type: ignore[arg-type]

    def target(self, **more: object) -> dict[str, object]:
        return dict(self.ask("GET", "/api/targets/server", **more).json())

    def end(self, number: int = signal.SIGTERM, seconds: float = 30) -> int:
        self.process.send_signal(number)
        return self.process.wait(seconds)


@contextmanager
def program(
    folder: Path, *words: object, state: Path | None = None, env: Mapping[str, str] | None = None
) -> Iterator[Program]:
    """`bringup` with these words; afterwards nothing of it or its servers is left."""
    err = folder / "err.txt"
    with open(err, "w") as errors, open(folder / "out.txt", "w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "app.cli", *map(str, words)], stdout=out, stderr=errors, stdin=subprocess.DEVNULL,
            cwd=ROOT, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
        )  # fmt: skip
    try:

        def address() -> str | None:
            assert process.poll() is None, err.read_text()
            found = re.search(r"web API at (http://\S+)/docs", err.read_text())
            return found[1] if found else None

        yield Program(process, until(address, "the address of the API"), folder)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)
        for run in (state or folder).rglob("run.json"):
            sweep(run.parent.name)


def write(folder: Path, argv: Sequence[str], more: str = "", service: str = "", auth: str = "") -> Path:
    path = folder / "bringup.toml"
    path.write_text(
        f'[service]\nlisten = "127.0.0.1:0"\nstate-dir = "{folder / "state"}"\n{service}\n{auth}\n'
        f"[targets.server]\ncommand = {json.dumps(list(argv))}\nstop-timeout = 3.0\nengine-version = '0.5.9'\n{more}\n"
    )
    return path


def test_a_service_is_restarted_and_goes_on_with_its_server(tmp_path: Path) -> None:
    token = new_token()
    argv = engine(tmp_path, [scene(HEALTHY, health=True)], port=free_port())
    config = write(tmp_path, argv, service='on-stop = "leave"', auth=f'[auth.control]\nops = "{hashed(token)}"')
    headers = {"authorization": f"Bearer {token}"}
    with program(tmp_path, "serve", config) as first:
        assert first.ask("GET", "/api/targets").status_code == 401
        until(lambda: first.target(headers=headers)["state"] == "ready", "ready")
        pid = first.target(headers=headers)["pid"]
        assert isinstance(pid, int)
        second = subprocess.run(
            [sys.executable, "-m", "app.cli", "serve", config], capture_output=True, text=True, cwd=ROOT, timeout=30
        )
        assert second.returncode == 2
        assert f"is held by bringup {first.process.pid}; ask that one, or name another --state-dir" in second.stderr
        begun = time.monotonic()
        assert first.end() == 0
        assert time.monotonic() - begun < 3
        assert look(pid), "the server runs on"


def test_a_service_killed_is_followed_by_one_that_goes_on(tmp_path: Path) -> None:
    argv = engine(tmp_path, [scene(HEALTHY, health=True)], port=free_port())
    config = write(tmp_path, argv)
    with program(tmp_path, "serve", config) as first:
        until(lambda: first.target()["state"] == "ready", "ready")
        before = first.target()
        first.end(signal.SIGKILL)
        with program(tmp_path, "serve", config) as second:
            until(lambda: second.target()["state"] == "ready", "ready again")
            after = second.target()
            assert (after["pid"], after["run"]) == (before["pid"], before["run"])
            assert second.ask("POST", "/api/targets/server/stop").status_code == 202
            until(lambda: second.target()["state"] == "stopped", "the stop")
            assert second.end() == 0
    assert "server: adopted: goes on with attempt 1" in (tmp_path / "out.txt").read_text()


def test_the_problems_of_a_file_are_told_and_nothing_begins(tmp_path: Path) -> None:
    path = write(tmp_path, ["x"], more="nonsense = 1\nfallback = 'maybe'")
    words = [sys.executable, "-m", "app.cli", "serve", str(path), "--check"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=30)
    assert done.returncode == 2
    assert [line.partition(f"{path}:")[2] for line in done.stderr.splitlines()] == [
        "10: targets.server.nonsense: is not known here",
        "11: targets.server.fallback: input should be 'off', 'ask' or 'auto'",
    ]
    write(tmp_path, ["/no/such/program"])
    done = subprocess.run(words[:-1], capture_output=True, text=True, cwd=ROOT, timeout=30)
    assert done.returncode == 2
    assert "target server: command not found: /no/such/program" in done.stderr


def test_the_demo_is_restarted_through_its_api(tmp_path: Path) -> None:
    words = ("demo", "--fallback", "ask", "--speed", "400", "--stay", "--no-tui", "--listen", "127.0.0.1:0")
    with program(tmp_path, *words) as demo:
        until(lambda: demo.target()["remedies"], "the verdict")
        remedies = demo.target()["remedies"]
        assert isinstance(remedies, list)
        answer = demo.ask("POST", "/api/targets/server/restart", json={"remedy": remedies[0]["name"]})
        assert answer.json()["diff"] == [f"-{PIECEWISE}"]
        until(lambda: demo.target()["state"] == "ready", "ready")
        assert demo.end() == 0


def test_a_run_that_stays_can_be_started_again(tmp_path: Path) -> None:
    crash = scene(STORY, needs=[PIECEWISE], exit=-9)
    argv = engine(tmp_path, [crash, scene(HEALTHY, health=True)], PIECEWISE, port=free_port())
    words = ("run", "--stay", "--listen", "127.0.0.1:0", "--state-dir", tmp_path / "state", "--engine-version", "0.5.9")
    with program(tmp_path, *words, "--", *argv) as running:
        until(lambda: "start" in running.target()["can"], "the end of the run")  # type: ignore[operator]
        answer = running.ask("POST", "/api/targets/server/restart", json={"remedy": f"{CAUSE}#1"})
        assert answer.status_code == 202, answer.text
        until(lambda: running.target()["state"] == "ready", "ready")
        assert running.end() == 0


def test_what_others_can_reach_needs_a_token(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "app.cli",
        "run",
        "--listen",
        "0.0.0.0:0",
        "--state-dir",
        str(tmp_path),
        "--",
        "true",
    ]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=30)
    assert done.returncode == 2
    assert "others can reach 0.0.0.0: put a token into BRINGUP_CONTROL_TOKEN" in done.stderr


def test_a_webhook_that_is_down_at_the_end_is_told_by_the_next_service(tmp_path: Path) -> None:
    port = free_port()
    crash = scene(STORY, needs=[PIECEWISE], exit=-9)
    hook = f'[[webhooks]]\nurl = "http://127.0.0.1:{port}/x"\nevents = ["verdict", "end"]\n'
    config = write(tmp_path, engine(tmp_path, [crash], PIECEWISE), more="start = true\n" + hook)
    with program(tmp_path, "serve", config) as first:
        until(lambda: "start" in first.target()["can"], "the end of the run")  # type: ignore[operator]
        begun = time.monotonic()
        assert first.end() == 0
        assert time.monotonic() - begun < 3
        assert (
            "2 events could not be delivered: kept and sent by the next bringup" in (tmp_path / "err.txt").read_text()
        )
    config.write_text(config.read_text().replace("start = true", "start = false"))
    with listening(port=port) as listener, program(tmp_path, "serve", config) as second:
        until(lambda: len(listener.taken) == 2, "both events")
        assert [json.loads(body)["event"] for _, body in listener.taken] == ["verdict", "end"]
        assert second.end() == 0
        assert "2 events from before wait and are sent first" in (tmp_path / "err.txt").read_text()


def rows(url: str) -> list[tuple[str, str, str | None]]:
    """(target, state, rule) of every run in a data base."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with engine.connect() as connection:
            found = connection.execute(text("SELECT target, state, rule FROM run ORDER BY began"))
            return [(row.target, row.state, row.rule) for row in found]
    except ProgrammingError:  # not made yet
        return []
    finally:
        engine.dispose()


def bare(url: str) -> dict[str, str]:
    return {"BRINGUP_DATABASE_URL": url.replace("bringup@", "bringup:pass-word-9@")}


def test_a_run_and_a_watch_share_a_data_base_and_show_no_password(tmp_path: Path, postgres: Postgres) -> None:
    shown = tmp_path / "environment"
    words = [sys.executable, "-c", f"import os; open({str(shown)!r}, 'w').write(repr(dict(os.environ)))"]
    more = ("--listen", "127.0.0.1:0", "--state-dir", tmp_path / "state", "--json")
    with program(tmp_path, "run", "--stay", "--name", "gpu7", *more, "--", *words, env=bare(postgres.url)) as run:
        until(lambda: [row[0] for row in rows(postgres.url)] == ["gpu7"], "the run in the data base", 60)
        assert run.ask("GET", "/api/targets/gpu7").status_code == 200
        assert run.end() == 1
        told = [(tmp_path / name).read_text() for name in ("out.txt", "err.txt")]
    until(shown.exists, "the variables of the server")
    assert "BRINGUP_DATABASE_URL" not in shown.read_text(), "the engine needs no password of ours"
    log = tmp_path / "server.log"
    log.write_bytes(STORY.read_bytes())
    with program(tmp_path, "watch", "--name", "gpu8", *more, log, env=bare(postgres.url)):
        until(lambda: ("gpu8", "crashed", CAUSE) in rows(postgres.url), "the watched run in the data base", 60)
        told += [(tmp_path / name).read_text() for name in ("out.txt", "err.txt")]
    told += [path.read_text() for path in (tmp_path / "state").rglob("*.json*")]
    assert told
    assert not [text for text in told if "pass-word-9" in text]
    assert not list((tmp_path / "state").rglob("store.sqlite3")), "there is one history"


def test_a_data_base_that_is_away_keeps_no_server_from_its_start(tmp_path: Path, postgres: Postgres) -> None:
    url = f"postgresql://bringup:pass-word-9@127.0.0.1:{free_port()}/postgres"
    more = ("--listen", "127.0.0.1:0", "--state-dir", tmp_path / "state", "--database-url")
    with program(tmp_path, "run", "--stay", "--name", "away", *more, url, "--", "true") as run:
        until(lambda: "start" in run.ask("GET", "/api/targets/away").json()["can"], "the end of the server")
        until(lambda: "no history yet" in (tmp_path / "err.txt").read_text(), "the word", 60)
        assert run.ask("GET", "/api/targets/away/runs").status_code == 503
        assert run.end() == 1
    assert "pass-word-9" not in (tmp_path / "err.txt").read_text()
    with program(tmp_path, "run", "--stay", "--name", "away", *more, postgres.url, "--", "true"):  # what was missed too
        until(lambda: [row[0] for row in rows(postgres.url)].count("away") == 2, "both runs in the data base", 60)


def test_a_service_whose_data_base_is_refused_does_not_begin(tmp_path: Path, postgres: Postgres) -> None:
    config = write(tmp_path, ["true"])
    words = [sys.executable, "-m", "app.cli", "serve", str(config), "--database-url"]
    for url, why in (
        (postgres.url.replace("/postgres", "/nowhere"), "does not exist"),
        ("mysqll://x", "no data base is reached"),
    ):
        done = subprocess.run([*words, url], capture_output=True, text=True, cwd=ROOT, timeout=120)
        assert done.returncode == 2, done.stderr
        assert why in done.stderr


def test_a_watch_that_is_killed_loses_and_doubles_no_run(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(STORY.read_bytes())
    more = ("--listen", "127.0.0.1:0", "--state-dir", tmp_path / "state")
    found = []
    for _ in range(2):
        with program(tmp_path, "watch", *more, log) as watch:

            def runs(watch: Program = watch) -> list[tuple[str, str, str | None]]:
                answer = watch.ask("GET", "/api/targets/server/runs").json()
                return [(row["id"], row["state"], row["rule"]) for row in answer.get("runs", ())]

            until(lambda: [row[1:] for row in runs()] == [("crashed", CAUSE)], "the run", 60)
            found.append(runs())
            watch.end(signal.SIGKILL)
    assert found[0] == found[1]


def test_clients_that_listen_do_not_hold_the_end(tmp_path: Path) -> None:
    with program(tmp_path, "serve", write(tmp_path, ["sleep", "600"], more="start = false")) as serve:
        until(lambda: serve.target()["state"] == "idle", "the target")
        url = f"{serve.url}/api/targets/server/events"
        with contextlib.ExitStack() as stack:
            client = stack.enter_context(httpx.Client(timeout=20, trust_env=False))
            answers = [stack.enter_context(client.stream("GET", url)) for _ in range(20)]
            readers = [answer.iter_lines() for answer in answers]
            assert all(next(lines) for lines in readers), "each of them listens"
            begun = time.monotonic()
            assert serve.end() == 0
            assert time.monotonic() - begun < 3
            assert any("bye" in line for line in readers[0]), "they are told"
