"""What the tests of several edges stand on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.targets import Patience
from app.targets.child import Child
from app.targets.processes import Ident
from tests.edges.servers import gone, no_orphans, until


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    """A server that is not started yet; afterwards nothing of it is left, its keeper included."""
    with no_orphans() as run:
        made = Child(tmp_path / "state.json", run)
        yield made
        list(made.stop(Patience(ask=0.3, rest=0.2, kill=10, port=3)))
        if made.state:
            keeper = Ident(made.state.keeper, made.state.keeper_started)
            until(gone(keeper), "the keeper ends with its last descendant, so none is left")
        made.close()
