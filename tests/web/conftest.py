"""What several modules of these tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.web.postgres import Postgres, postgresql


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A server for the tests of one module."""
    with postgresql(tmp_path_factory.mktemp("pg")) as server:
        yield server
