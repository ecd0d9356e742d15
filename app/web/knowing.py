"""The routes that need no target: /api/explain and /api/rules."""

import asyncio
import zlib
from collections.abc import AsyncIterator
from typing import Annotated, Any

from anyio import from_thread
from fastapi import APIRouter, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from app import pages
from app.core.rules import Rule
from app.core.upgrades import fixes, steps_of, with_upgrade
from app.explain import Told, explain_bytes
from app.offers import scrubbed
from app.report import to_json
from app.web import models
from app.web.problems import Problem, documented
from app.web.state import State

PIECE = 1 << 20
"""Bytes that are read before the diagnosis gets them."""
Words = Annotated[str | None, Query(max_length=4000, description="The command line, where the log does not tell it.")]
Word = Annotated[str | None, Query(max_length=100)]


def routes(state: State) -> APIRouter:
    """The routes, over the rules of the service."""
    router = APIRouter(prefix="/api")
    base = state.service.base
    turns = asyncio.Semaphore(state.access.explaining)

    @router.post(
        "/explain", tags=["explain"], response_model=models.ReportOut, responses=documented(408, 413, 422, 503),
        openapi_extra={"requestBody": {"required": True, "content": {
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        }}},
    )  # fmt: skip
    async def explain(
        request: Request, idle: Annotated[float, Query(ge=0, le=1e9, allow_inf_nan=False)] = 0.0, argv: Words = None,
        engine_version: Word = None, gpu: Word = None, exit: Word = None,
    ) -> Response:  # fmt: skip
        """Explain a log: the body is the log, plain or gzip. It is read as it comes and nothing of it is kept.

        `curl --data-binary @server.log http://127.0.0.1:8420/api/explain`
        """
        if turns.locked():
            raise Problem(503, "other logs are being read; ask again", {"retry-after": "2"})
        async with turns:
            told = Told.read(argv, engine_version, gpu, exit)
            body = _unpacked(request, state.access.explain)
            end = asyncio.get_running_loop().time() + state.access.explain_seconds

            async def following() -> bytes | None:
                async with asyncio.timeout_at(end):
                    return await anext(body, None)

            def answer() -> dict[str, Any]:
                pieces = iter(lambda: from_thread.run(following), None)
                status = explain_bytes(pieces, base, told, idle)
                report: dict[str, Any] = scrubbed(to_json(status, "request", base, near=True))
                return report

            try:
                return JSONResponse(await run_in_threadpool(answer))
            except TimeoutError:
                raise Problem(408, f"the log did not come within {state.access.explain_seconds:g} s") from None
            except ClientDisconnect:
                return Response(status_code=400)

    @router.get("/rules", tags=["rules"], response_model=models.RulesOut, responses=documented(422))
    async def rules(
        search: Annotated[str, Query(max_length=200, description="Only rules in which all these words stand.")] = "",
    ) -> Response:
        """Every rule, or those that a search finds, best first: id, title, role, status."""
        found = await run_in_threadpool(lambda: pages.search(base.rules(), search) if search else base.rules())
        return JSONResponse({"rules": [_row(rule) for rule in found]})

    @router.get(
        "/rules/{area}/{name}", tags=["rules"], response_model=models.RulePageOut, responses=documented(404, 422)
    )
    async def rule(
        area: Annotated[str, Path(max_length=100, examples=["dynamo"])],
        name: Annotated[str, Path(max_length=100, examples=["flashinfer-fp4-jit-under-dynamo"])],
    ) -> Response:
        """One rule: what it means, how it shows, what helps."""
        found = await run_in_threadpool(base.find, f"{area}/{name}")
        if found is None:
            raise Problem(404, f"there is no rule {area}/{name}")
        rule = found[0]
        remedies = [
            {"title": each.title, "set": dict(each.set), "env": dict(each.env), "steps": steps_of(each, fixes(rule)),
             "cost": each.cost, "safe": each.safe, "proof": each.proof}
            for each in with_upgrade(rule)
        ]  # fmt: skip
        more = {"page": pages.rule_page(rule, base), "references": list(rule.references), "remedies": remedies}
        return JSONResponse({**_row(rule), **more})

    return router


def _row(rule: Rule) -> dict[str, Any]:
    return {"id": rule.id, "area": rule.area, "title": rule.title, "role": rule.role, "status": rule.status}


async def _unpacked(request: Request, limit: int) -> AsyncIterator[bytes]:
    """The body in pieces, unpacked where it is gzip. Problem 413 when more than `limit` bytes come out, 422 when the
    gzip data is broken."""
    unpack = None
    first = True
    taken = 0
    async for data in _pieces(request):
        if first:
            first = False
            unpack = zlib.decompressobj(wbits=31) if data[:2] == b"\x1f\x8b" else None
        if unpack is None:
            yield data
            continue
        while data:
            try:
                out = await run_in_threadpool(unpack.decompress, data, PIECE)
            except zlib.error as error:
                raise Problem(422, f"the gzip data is broken: {error}") from None
            taken += len(out)
            if taken > limit:
                raise Problem(413, f"the log unpacks to more than {limit} bytes")
            if out:
                yield out
            data = unpack.unconsumed_tail
            if unpack.eof:
                data = unpack.unused_data
                if data[:2] != b"\x1f\x8b":
                    break
                unpack = zlib.decompressobj(wbits=31)


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    kept = bytearray()
    async for chunk in request.stream():
        kept += chunk
        if len(kept) >= PIECE:
            yield bytes(kept)
            kept.clear()
    if kept:
        yield bytes(kept)
