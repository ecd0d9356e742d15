"""Requests made up from the OpenAPI document, right ones and wrong ones: no answer is a 5xx or breaks the document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.web.harness import OPEN, Running, serving

BOUNDED = settings(
    max_examples=10, deadline=None, database=None, derandomize=True, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("contract"), [["/no/such/engine"]], begin=False) as running:
        yield running


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_the_document_holds(running: Running, mode: GenerationMode) -> None:
    document = schemathesis.openapi.from_url(f"{running.url}/openapi.json")
    asked = set()
    for found in document.get_all_operations():
        operation: Any = found.ok()  # type: ignore[union-attr]
        if operation.path.endswith(("/events", "/readyz", "/startupz")):
            continue  # the first does not end (test_stream.py); the others are to answer 503 here
        if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query or operation.headers):
            continue

        @BOUNDED
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Any) -> None:
            # What the document allows may still be refused: a remedy that is not on offer, another run (If-Match).
            case.call_and_validate(timeout=20, excluded_checks=[positive_data_acceptance])

        ask()
        asked.add(operation.path)
    assert "/api/targets/{target}/restart" in asked


def test_every_route_is_documented(running: Running) -> None:
    document = running.get("/openapi.json")
    assert len(document["paths"]) >= 14
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation.get("description"), f"{method} {path}"
            assert operation["responses"], path
    assert OPEN.loopback
