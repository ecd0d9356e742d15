"""A service in, its web application out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, JSONResponse, Response

from app import __version__
from app.audit import Audit
from app.service import Service, Target
from app.web import knowing, log, models, page, problems, runs, targets
from app.web.access import Access
from app.web.guard import Guard
from app.web.metrics import Tally
from app.web.problems import documented
from app.web.reference import reference
from app.web.state import State
from app.web.stream import Broadcast

ABOUT = """Watch the start-up of inference servers, read why one failed, restart it with what helps.

Errors are RFC 9457 problem details. Where tokens are configured, send `Authorization: Bearer TOKEN`: a read token may
ask, a control token may also start, stop and restart."""


def create_app(service: Service, access: Access | None = None) -> FastAPI:
    """The application. `close` it (see `close_streams`) before its server is stopped."""
    access = access or Access()
    state = State(service, access, Audit(service.root), Tally(service))
    state.tally.broadcasts = state.broadcasts

    @contextlib.asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        for name, target in service.targets.items():
            slim = partial(targets.target_json, target, slim=True)
            state.broadcasts[name] = Broadcast(target.hub, slim, partial(state.tally.take, name))
        tasks = [asyncio.create_task(each.run(), name="broadcast") for each in state.broadcasts.values()]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    app = FastAPI(
        title="bringup", version=__version__, description=ABOUT, lifespan=life, docs_url=None, redoc_url=None,
        openapi_url="/openapi.json", separate_input_output_schemas=False,
    )  # fmt: skip
    app.state.bringup = state
    app.add_middleware(Guard, access=access)
    problems.install(app)
    app.include_router(targets.routes(state))
    app.include_router(log.routes(state))
    app.include_router(runs.routes(state))
    app.include_router(knowing.routes(state))
    app.include_router(page.routes())
    _add_probes(app, state)
    _add_pages(app, state)
    _add_schemas(app)
    return app


def close_streams(app: FastAPI) -> None:
    """Ends every event stream. Call it in the application's event loop."""
    state: State = app.state.bringup
    for broadcast in state.broadcasts.values():
        broadcast.close()


def _add_probes(app: FastAPI, state: State) -> None:
    unready: dict[int | str, dict[str, Any]] = {503: documented(503)[503]}

    def every(good: Any, what: str) -> Response:
        bad = [name for name, target in state.service.targets.items() if not good(target)]
        if not bad:
            return JSONResponse({"status": "ok"})
        return problems.problem(503, f"{what}: {', '.join(bad)}", targets=bad)

    @app.get("/healthz", tags=["probes"], response_model=models.HealthOut)
    async def healthz() -> Response:
        """200 while bringup itself works, however its targets are."""
        return JSONResponse({"status": "ok", "version": __version__})

    @app.get("/readyz", tags=["probes"], response_model=models.HealthOut, responses=unready)
    async def readyz() -> Response:
        """200 when every target serves."""
        return every(lambda target: target.hub.status.get("state") == "ready", "not ready")

    @app.get("/startupz", tags=["probes"], response_model=models.HealthOut, responses=unready)
    async def startupz() -> Response:
        """200 while every target serves or gets on: its log moves, or is no longer silent than is normal in its phase.
        So nobody ends a load that takes ten minutes and is well; 503 once one stands still or has failed."""
        return every(gets_on, "does not get on")


def gets_on(target: Target) -> bool:
    """Whether a target serves, or makes progress towards it."""
    status = target.hub.status
    if status.get("state") == "ready":
        return True
    limit, idle = status.get("silence_limit"), status.get("idle")
    return status.get("state") == "starting" and (limit is None or idle is None or idle <= limit)


def _add_pages(app: FastAPI, state: State) -> None:
    @app.get("/metrics", tags=["probes"], response_class=Response, responses={
        200: {"description": "Prometheus", "content": {"text/plain": {"schema": {"type": "string"}}}}, **documented()},
    )  # fmt: skip
    async def metrics() -> Response:
        """For Prometheus."""
        data, kind = state.tally.text()
        return Response(data, media_type=kind)

    @app.get("/api/audit", tags=["audit"], response_model=models.AuditOut, responses=documented(422))
    async def audit(count: Annotated[int, Query(ge=1, le=1000)] = 100) -> Response:
        """Who started, stopped or restarted what, newest first. Needs the control token."""
        return JSONResponse({"audit": await run_in_threadpool(state.audit.last, count)})

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        """The OpenAPI document for people: one page, no scripts, nothing from elsewhere."""
        return HTMLResponse(reference(app.openapi(), str(request.base_url)))


def _add_schemas(app: FastAPI) -> None:
    """Has the OpenAPI document know the schema of problems."""
    made = app.openapi

    def with_problems() -> dict[str, Any]:
        document = made()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas.setdefault("ProblemOut", problems.ProblemOut.model_json_schema())
        bearer = {"type": "http", "scheme": "bearer", "description": "Where tokens are configured."}
        document["components"].setdefault("securitySchemes", {"token": bearer})
        return document

    app.openapi = with_problems  # type: ignore[method-assign]
