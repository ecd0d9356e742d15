"""The routes under /api/targets: how a target is, its stream of events, and what can be asked of it."""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from app.core.launch import find_launch
from app.core.secrets import mask_json
from app.service import Planned, Target, Wish
from app.turning import REFUSED, Refusal, settable
from app.web import models
from app.web.problems import Problem, documented
from app.web.state import State
from app.web.stream import EventStream

Name = Annotated[
    str, Path(max_length=100, description="A target's name; `server` where there is one.", examples=["server"])
]
IfMatch = Annotated[
    str | None, Header(max_length=200, description="The ETag of the run and attempt that this is meant for.")
]
Key = Annotated[
    str | None,
    Header(min_length=1, max_length=200, description="Repeats with the same key get the first answer."),
]
HIDDEN = ("report", "attempts", "lines", "stacks")
"""What a slim status leaves out."""


def target_json(target: Target, slim: bool = False) -> dict[str, Any]:
    """A target as the API tells it."""
    status = target.hub.status
    known: Mapping[str, Any] = {name: value for name, value in status.items() if not (slim and name in HIDDEN)}
    return {
        "remedies": [], "offers": [], "state": "idle", "attempt": 0, "run": None, **known,
        "name": target.name, "kind": target.kind, "can": list(target.can), "tag": target.tag,
    }  # fmt: skip


def routes(state: State) -> APIRouter:
    """The routes, over the service and what the application keeps."""
    router = APIRouter(prefix="/api/targets", tags=["targets"])
    service = state.service

    def named(target: Name) -> Target:
        found = service.targets.get(target)
        if found is None:
            raise Problem(404, f"there is no target {target!r}; there are: {', '.join(service.targets) or 'none'}")
        return found

    Found = Annotated[Any, Depends(named)]

    @router.get("", response_model=models.TargetsOut, responses=documented())
    async def targets() -> Response:
        """Every target as it is now."""
        return JSONResponse({"targets": [target_json(target) for target in service.targets.values()]})

    @router.get("/{target}", response_model=models.TargetOut, responses=documented(404, 422))
    async def target(target: Found) -> Response:
        """One target: state, phases with progress, time left, verdict, remedies. The ETag names run and attempt."""
        return JSONResponse(target_json(target), headers={"etag": f'"{target.tag}"'})

    @router.get(
        "/{target}/events",
        response_class=Response,
        responses={
            200: {"description": "Events", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
            **documented(404, 422, 503),
        },
    )
    async def events(
        target: Found,
        last_event_id: Annotated[
            str | None, Header(max_length=100, description="The id of the last event seen.")
        ] = None,
        after: Annotated[
            str | None, Query(max_length=100, description="The same, where headers cannot be set.")
        ] = None,
    ) -> Response:
        """Server-Sent Events: first `snapshot` (the target), then what was missed since the last id, then every news as
        it happens (`verdict`, `remedies`, `phase`, `progress`, `state`, `attempt`, `exit`, …), now and then `status`.

        A stream that ends with `dropped` says why; one that ends with `bye` had its service stopped.
        """
        if sum(each.readers for each in state.broadcasts.values()) >= state.access.streams:
            raise Problem(503, "too many event streams are open", {"retry-after": "5"})
        broadcast = state.broadcasts[target.name]
        return EventStream(broadcast, lambda: target_json(target), last_event_id or after)

    @router.get("/{target}/knobs", response_model=models.KnobsOut, responses=documented(404, 422))
    async def knobs(target: Found) -> Response:
        """What a restart may set on this target's command line."""
        engine = (target.hub.status.get("engine") or {}).get("name")
        if engine is None and (launch := find_launch(target.hub.status.get("argv") or [])):
            engine = launch.engine
        found = settable(service.base.knobs(engine)[0]) if engine else {}
        rows = [
            {"name": knob.name, "title": knob.title, "type": knob.type, "values": list(knob.values),
             "minimum": knob.minimum, "maximum": knob.maximum}
            for knob in found.values()
        ]  # fmt: skip
        return JSONResponse({"engine": engine, "knobs": rows})

    @router.get("/{target}/last-good", response_model=models.LastGoodOut, responses=documented(404, 422))
    async def last_good(target: Found) -> Response:
        """What a restart with `last_good` would start: the last launch that became ready, other than the current one,
        with what differs. Null where there is none, with the reason."""
        try:
            planned = await run_in_threadpool(target.last_good)
        except Refusal as refusal:
            return JSONResponse({"last_good": None, "reason": str(refusal)})
        return JSONResponse({"last_good": planned.to_json(), "reason": None})

    async def ask(
        request: Request, target: Target, action: str, key: str | None, wish: Wish, do: Callable[[Wish], Planned | None]
    ) -> Response:
        """Does what was asked, once; writes down who asked and what came of it."""
        who, address = request.scope["who"]
        asked = {"remedy": wish.remedy, "knobs": dict(wish.knobs), "last_good": wish.last_good, "again": wish.again,
                 "dry_run": wish.only_say}  # fmt: skip

        def note(status: int, result: str) -> None:
            state.audit.note(who, address, target.name, action, mask_json(asked), status, result)

        async def work() -> Response:
            try:
                planned = await run_in_threadpool(do, wish)
            except Refusal as refusal:
                await run_in_threadpool(note, REFUSED[refusal.kind], str(refusal))
                raise
            status = 200 if wish.only_say else 202
            await run_in_threadpool(note, status, planned.title if planned else "stopping")
            body = planned.to_json() if planned is not None else {"stopping": True}
            headers = {"location": f"/api/runs/{planned.run}"} if planned is not None and planned.run else None
            return JSONResponse(body, status, headers)

        whole = json.dumps([target.name, action, asked, wish.tag], sort_keys=True).encode()
        answer, before = await state.answers.once(who, key, whole, work)
        if before:
            return Response(answer.body, answer.status_code, {"idempotent-replayed": "true"}, "application/json")
        return answer

    done: dict[int | str, dict[str, Any]] = {
        200: {"description": "What would be done (dry_run)"},
        202: {"model": models.PlannedOut, "description": "Under way"},
    }

    @router.post(
        "/{target}/start",
        response_model=models.PlannedOut,
        responses={**done, **documented(404, 409, 412, 413, 415, 422)},
    )
    async def start(
        request: Request, target: Found, body: models.StartIn | None = None, if_match: IfMatch = None,
        idempotency_key: Key = None,
    ) -> Response:  # fmt: skip
        """Start it as it was configured. 409 when it runs, or when the same launch has just failed for good."""
        given = body or models.StartIn()
        wish = Wish(again=given.again, only_say=given.dry_run, tag=_tag(if_match))
        return await ask(request, target, "start", idempotency_key, wish, target.start)

    @router.post(
        "/{target}/stop",
        status_code=202,
        response_model=models.StoppedOut,
        responses=documented(404, 409, 412, 413, 422),
    )
    async def stop(request: Request, target: Found, if_match: IfMatch = None, idempotency_key: Key = None) -> Response:
        """Stop it: ask, wait, kill. The events tell every step."""
        return await ask(request, target, "stop", idempotency_key, Wish(tag=_tag(if_match)), target.halt)

    @router.post(
        "/{target}/restart", response_model=models.PlannedOut,
        responses={**done, **documented(404, 409, 412, 413, 415, 422)},
    )  # fmt: skip
    async def restart(
        request: Request, target: Found, body: models.RestartIn | None = None, if_match: IfMatch = None,
        idempotency_key: Key = None,
    ) -> Response:  # fmt: skip
        """Stop what runs and start it changed: by a remedy of the verdict, by knobs, or back to the last good launch
        (409 when there is none). The answer shows the change as a diff of the command line; `dry_run` does nothing
        else."""
        given = body or models.RestartIn()
        wish = Wish(given.remedy, given.knobs, given.again, given.dry_run, _tag(if_match), given.last_good)
        return await ask(request, target, "restart", idempotency_key, wish, target.restart)

    return router


def _tag(header: str | None) -> str | None:
    """The tag in an If-Match header; None for none and for `*`."""
    text = (header or "").strip()
    return None if text in ("", "*") else text.removeprefix("W/").strip('"')
