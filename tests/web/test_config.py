"""bringup.toml: what is right is taken, and every problem is told at once with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.config import ConfigError, read

GOOD = """
[service]
listen = "0.0.0.0:8420"
hosts = ["gpu7.example"]
on-stop = "leave"

[auth.control]
ops = "sha256:%s"

[targets.glm]
command = ["python", "-m", "sglang.launch_server", "--model-path", "/models/m"]
env = {HF_HOME = "/models"}
fallback = "auto"
stop-timeout = 5.0

[targets.other]
log = "/var/log/sglang.log"

[[webhooks]]
url = "https://hooks.example/x"
events = ["verdict"]
""" % ("0" * 64)  # fmt: skip


def test_a_right_file(tmp_path: Path) -> None:
    path = tmp_path / "bringup.toml"
    path.write_text(GOOD)
    config = read(path)
    assert config.service.on_stop == "leave"
    assert config.targets["glm"].launch().env == (("HF_HOME", "/models"),)
    assert config.targets["glm"].settings().mode == "auto"
    assert config.targets["glm"].settings().limits.patience.ask == 5
    assert config.targets["other"].log == "/var/log/sglang.log"


def test_every_problem_at_once_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bringup.toml"
    path.write_text("""[service]
listn = "x"
keep-days = "many"

[auth.read]
screen = "plain text token"

[targets.glm]
command = []
fallback = "perhaps"

[targets.both]
command = ["x"]
log = "y"

[targets.none]
[[webhooks]]
url = "ftp://x"
[[webhooks]]
url = "https://x"
events = ["verdict", "nothing"]
""")
    with pytest.raises(ConfigError) as raised:
        read(path)
    assert [line.removeprefix(f"{path}:") for line in raised.value.problems] == [
        "2: service.listn: is not known here",
        "3: service.keep-days: input should be a valid number",
        "6: auth.read.screen: 'plain text token' does not fit ^sha256:[0-9a-f]{64}$",
        "9: targets.glm.command: list should have at least 1 item after validation, not 0",
        "10: targets.glm.fallback: input should be 'off', 'ask' or 'auto'",
        "12: targets.both: needs either a command (a server of ours) or a log (somebody else's)",
        "16: targets.none: needs either a command (a server of ours) or a log (somebody else's)",
        "18: webhooks.0.url: 'ftp://x' does not fit ^https?://[^\\s@]+$",
        "21: webhooks.1.events.1: input should be 'verdict', 'ready' or 'end'",
    ]


@pytest.mark.parametrize(("text", "problem"), [
    ("[service\nlisten = 1", "1: not TOML: Expected ']' at the end of a table declaration"),
    ("x = 1\n", "1: targets: is missing"),
    ("[targets]\n", "1: targets: dictionary should have at least 1 item after validation, not 0"),
    ('[targets."a/b"]\ncommand = ["x"]\n', "1: targets.a/b: 'a/b' does not fit"),
])  # fmt: skip
def test_one_problem(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "bringup.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read(path)
    assert any(line.startswith(f"{path}:{problem}") for line in raised.value.problems), raised.value.problems
