"""The engine tests run only where they are asked for by name: `sh tests/run tests/engine`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine import models
from tests.engine.running import Engine

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves this folder out unless it, or something in it, was named."""
    named = [(config.invocation_params.dir / str(word).partition("::")[0]).resolve() for word in config.args]
    asked = any(path.is_relative_to(HERE) for path in named)
    return None if asked or not collection_path.is_relative_to(HERE) else True


@pytest.fixture
def usable() -> Callable[[str], Engine]:
    """The environment of a release; the test is skipped where it is missing, and says how to get it."""

    def find(version: str) -> Engine:
        engine = Engine(version)
        if engine.missing:
            pytest.skip(engine.missing)
        return engine

    return find


@pytest.fixture
def old(usable: Callable[[str], Engine]) -> Engine:
    """SGLang 0.5.9, of the founding story's time."""
    return usable("0.5.9")


@pytest.fixture
def new(usable: Callable[[str], Engine]) -> Engine:
    """SGLang 0.5.23."""
    return usable("0.5.23")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """An empty folder with every kind of model in models/."""
    for name, make in models.KINDS.items():
        make(tmp_path / "models" / name)
    return tmp_path
