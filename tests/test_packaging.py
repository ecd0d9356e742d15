"""What is shipped to run bringup elsewhere: it is well-formed, and fits what bringup is."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from app import config
from app.hub import Hub, News
from app.web.metrics import Tally

ROOT = Path(__file__).parent.parent
PACKAGING = ROOT / "packaging"


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile as (instruction, rest), comments left out and lines joined."""
    text = re.sub(
        r"\\\n\s*", "", "\n".join(line for line in (ROOT / "Dockerfile").read_text().splitlines() if line[:1] != "#")
    )
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in text.splitlines() if line.strip()]


def test_the_image_has_stages_on_any_base_and_no_root() -> None:
    found = instructions()
    assert [rest for name, rest in found if name == "FROM"] == ["${BASE} AS build", "${BASE}"]
    assert found[0] == ("ARG", "BASE=python:3.11-slim-bookworm"), "a tag, never latest"
    last = dict(found)
    assert last["USER"].isdecimal()
    assert int(last["USER"]) > 0
    assert "/healthz" in last["HEALTHCHECK"]
    assert json.loads(last["ENTRYPOINT"]) == ["/opt/bringup/bin/bringup"]
    assert json.loads(last["CMD"])[0] == "serve"
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for name, rest in found:
        for source in rest.split()[:-1] if name == "COPY" and "--from" not in rest else ():
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored, f"{source} does not reach the build"
    hadolint = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert hadolint, "hadolint is among the development packages"
    subprocess.run([hadolint, str(ROOT / "Dockerfile")], check=True, timeout=60)


def test_the_wheel_holds_what_the_image_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "postgres" in project["project"]["optional-dependencies"]
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["app"]
    for source in project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]:
        assert (ROOT / source).exists(), source


def test_the_compose_file() -> None:
    compose: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert set(compose) <= {"name", "services", "volumes", "secrets", "networks", "configs"}
    server = compose["services"]["server"]
    assert server["build"]["args"]["BASE"].startswith("${ENGINE_IMAGE")
    device = server["deploy"]["resources"]["reservations"]["devices"][0]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert server["shm_size"] == "32gb"
    for name, service in compose["services"].items():
        assert "image" in service, name
        assert not service["image"].endswith(":latest"), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), (
            f"{name} is for this machine only"
        )
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("./packaging"):
                assert (ROOT / source).is_file(), source
            elif not source.startswith(("$", ".", "/")):
                assert source in compose["volumes"], source
    assert {name for name, each in compose["services"].items() if "profiles" not in each} == {"server"}
    assert "logs:/var/lib/bringup" in server["volumes"]
    assert all(value.startswith("${") for name, value in server["environment"].items() if "TOKEN" in name)


def test_the_example_of_a_configuration_is_right() -> None:
    found = config.read(PACKAGING / "bringup.toml")
    assert found.targets["server"].command is not None
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(PACKAGING / "bringup.service")
    assert unit["Service"]["KillMode"] == "process", "a restart of bringup must not end the server"
    assert unit["Service"]["ExecStart"].split()[1] == "serve"
    assert unit["Service"]["User"] == "bringup"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = (PACKAGING / "bringup.service").read_text().replace("/opt/bringup/bin/bringup", "/bin/true")
    path = tmp_path / "bringup.service"
    path.write_text(re.sub(r"(?m)^(User|Group)=.*\n", "", text))  # they are not there on every machine
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), "it says what it does not know"


def test_compose_takes_the_file() -> None:
    docker = shutil.which("docker")
    asked = [docker or "docker", "compose", "version"]
    if docker is None or subprocess.run(asked, capture_output=True, timeout=60).returncode:
        pytest.skip("docker compose is not here")
    env = {**os.environ, "BRINGUP_CONTROL_TOKEN": "x", "BRINGUP_READ_TOKEN": "y"}
    words = [docker, "compose", "--profile", "postgres", "--profile", "monitoring", "config", "--quiet"]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_secret_of_a_build_stays_in_no_layer() -> None:
    runs = [rest for name, rest in instructions() if name == "RUN" and "pip install" in rest]
    assert len(runs) == 1
    assert runs[0].startswith("--mount=type=secret,id=pip,target=/etc/pip.conf ")
    assert not [rest for name, rest in instructions() if name in ("COPY", "ADD") and "pip.conf" in rest]


def test_the_kubernetes_example_asks_the_three_probes(tmp_path: Path) -> None:
    documents = list(yaml.safe_load_all((PACKAGING / "kubernetes.yaml").read_text()))
    assert [each["kind"] for each in documents] == ["Secret", "ConfigMap", "Deployment", "Service"]
    assert all(each["apiVersion"] and each["metadata"]["name"] for each in documents)
    pod = documents[2]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    probes = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert probes == {"startupProbe": "/startupz", "readinessProbe": "/readyz", "livenessProbe": "/healthz"}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert all(container[name]["httpGet"]["port"] in ports for name in probes)
    assert pod["securityContext"]["runAsNonRoot"]
    path = tmp_path / "bringup.toml"
    path.write_text(documents[1]["data"]["bringup.toml"])
    assert config.read(path).service.listen == "0.0.0.0:8420"


@pytest.mark.parametrize("name", ["prometheus.yml", "grafana/datasource.yaml", "grafana/provisioning.yaml"])
def test_the_monitoring_files_are_yaml(name: str) -> None:
    assert isinstance(yaml.safe_load((PACKAGING / name).read_text()), dict)


def test_the_dashboard_asks_for_what_there_is(tmp_path: Path) -> None:
    from app.service import Service

    class Target:
        name, hub = "server", Hub()

    class Broadcast:
        readers = dropped = 0

    Target.hub.status = {
        "state": "starting", "phases": [{"id": "weights", "state": "running", "seconds": 1.0}], "left": {"seconds": 3},
        "idle": 1, "log": str(tmp_path / "log"), "bytes": 0, "attempt": 1,
    }  # fmt: skip
    (tmp_path / "log").write_text("x")
    tally = Tally(Service(None, tmp_path, {"server": Target}))  # type: ignore[arg-type, dict-item]
    tally.broadcasts = {"server": Broadcast}  # type: ignore[dict-item]
    for kind, data in (
        ("attempt", {"via": "x"}),
        ("verdict", {"stage": "early", "rule": "a/b"}),
        ("ended", {"state": "crashed"}),
    ):
        tally.take("server", News(1, 0.0, kind, "", data))
    text = tally.text()[0].decode()
    dashboard = json.loads((PACKAGING / "grafana" / "dashboard.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for query in panel["targets"]
        for name in re.findall(r"bringup_\w+", query["expr"])
    }
    assert len(asked) >= 9
    for name in asked:
        assert re.search(rf"^{name}(?:{{|\s)", text, re.MULTILINE), f"{name} is not told"
