"""The routes of what was: the runs of a target, one run, its logs, what differs between two, and a bundle to send."""

import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response, StreamingResponse

from app.bundle import masked_lines, packed
from app.comparing import argv_diff, map_diff, phase_diff
from app.logfile import LogFile
from app.web import models
from app.web.log import (
    MOST,
    Count,
    FindCount,
    First,
    FoundOut,
    RankNames,
    RanksOut,
    Text,
    found_json,
    ranks_json,
    rows_json,
)  # fmt: skip
from app.web.problems import Problem, documented
from app.web.state import State

if TYPE_CHECKING:  # what comes with them is loaded while the first requests are answered already
    from app.store import Store
    from app.tables import AttemptRow, FindingRow, PhaseRow, RunRow

T = TypeVar("T")
AROUND = 3
"""Lines shown before and after one that is evidence."""
PATTERN = r"^[0-9]{8}-[0-9]{6}-[0-9a-f]{6}$"
Id = Annotated[str, Path(pattern=PATTERN, description="A run's id.", examples=["20261201-102030-a1b2c3"])]
Number = Annotated[int | None, Query(ge=1, le=10_000, description="An attempt of the run; without, its last.")]


def routes(state: State) -> APIRouter:
    """The routes, over the store of the service."""
    router = APIRouter(prefix="/api", tags=["runs"])
    files: OrderedDict[str, LogFile] = OrderedDict()

    async def asked(work: Callable[["Store"], T]) -> T:
        """What `work` finds in the store, on a thread. Problem 503 when there is none or it is away."""
        store = await run_in_threadpool(state.service.opened_store)
        if store is None:
            raise Problem(503, "there is no store: its data base could not be opened")
        from app.store import StoreError

        try:
            return await run_in_threadpool(work, store)
        except StoreError as error:
            raise Problem(503, str(error), {"retry-after": "5"}) from None

    def fresh(store: "Store", target: str) -> None:
        """Takes the latest news of a target's latest runs: what was just told must not be missing."""
        found = state.service.targets.get(target)
        for folder in sorted(found.root.glob("runs/*"))[-10:] if found is not None else ():
            store.follow(folder, target)

    def known(store: "Store", name: str) -> "tuple[RunRow, list[AttemptRow]]":
        for target in state.service.targets.values():
            folder = target.root / "runs" / name
            if folder.is_dir():
                store.follow(folder, target.name)
        found = store.run(name)
        if found is None:
            raise Problem(404, f"there is no run {name}")
        return found

    def one(store: "Store", name: str, number: int | None) -> "tuple[RunRow, AttemptRow]":
        run, attempts = known(store, name)
        fitting = [each for each in attempts if number is None or each.number == number]
        if not fitting:
            raise Problem(404, f"run {name} has no attempt {number}" if number else f"run {name} has no attempt yet")
        return run, fitting[-1]

    def file_of(path: FilePath) -> LogFile:
        file = files.pop(str(path), None) or LogFile(str(path))
        files[str(path)] = file
        while len(files) > 16:
            files.popitem(last=False)
        return file

    def log_path(run: "RunRow", attempt: "AttemptRow") -> FilePath:
        store = state.service.store
        if store is not None and run.host != store.host:
            raise Problem(404, f"the log is kept on {run.host}: ask the bringup there")
        path = FilePath(attempt.log)
        if not path.is_file():
            raise Problem(404, "the log is no longer there")
        return path

    @router.get("/targets/{target}/runs", response_model=models.RunsOut, responses=documented(404, 422, 503))
    async def runs(
        target: Annotated[str, Path(max_length=100, examples=["server"])],
        count: Annotated[int, Query(ge=1, le=500)] = 50,
        before: Annotated[float | None, Query(allow_inf_nan=False, description="Only those that began before.")] = None,
    ) -> Response:
        """The latest runs of a target, latest first."""
        if target not in state.service.targets:
            raise Problem(404, f"there is no target {target!r}")

        def work(store: "Store") -> "list[RunRow]":
            fresh(store, target)
            return store.runs(target, count, before)

        return JSONResponse({"runs": [_run(row) for row in await asked(work)]})

    @router.get("/runs/{run}", response_model=models.RunOut, responses=documented(404, 422, 503))
    async def one_run(run: Id) -> Response:
        """One run with its attempts: command line and diff, phases with their seconds, verdicts with their evidence."""
        return JSONResponse(await asked(lambda store: _whole(store, *known(store, run))))

    @router.get("/runs/{run}/log", response_model=models.RunLogOut, responses={
        200: {"description": "Lines, or the whole log (`raw`)",
              "content": {"text/plain": {"schema": {"type": "string"}}}}, **documented(404, 422, 503)},
    )  # fmt: skip
    async def log(
        run: Id, attempt: Number = None,
        first: First = 1, count: Count = 200,
        evidence: Annotated[bool, Query(description="Only lines that prove the verdicts, and some around.")] = False,
        raw: Annotated[bool, Query(description="The whole log as text, to keep.")] = False,
    ) -> Response:  # fmt: skip
        """The log of an attempt: lines by number, the evidence, or all of it. Secrets are masked."""

        def work(store: "Store") -> Response:
            row, found = one(store, run, attempt)
            path = log_path(row, found)
            if raw:
                name = f"{run}-attempt-{found.number}.log"
                headers = {"content-disposition": f'attachment; filename="{name}"'}
                return StreamingResponse(_all(path), media_type="text/plain", headers=headers)
            file = file_of(path)
            if evidence:
                _, findings = store.details(found)
                numbers = sorted({int(item["line"]) for each in findings for item in each.evidence if item.get("line")})
                answer = rows_json(file, 1, 0)
                for begin, length in _windows(numbers):
                    answer["rows"] += rows_json(file, begin, length)["rows"]
            else:
                numbers = []
                answer = rows_json(file, first, count)
            return JSONResponse({"attempt": found.number, "evidence": numbers, **answer})

        return await asked(work)

    async def looked(run: str, attempt: int | None, work: Callable[[LogFile], dict[str, Any]]) -> Response:
        path = await asked(lambda store: log_path(*one(store, run, attempt)))
        try:
            return JSONResponse(await run_in_threadpool(work, file_of(path)))
        except OSError as error:
            raise Problem(404, f"the log cannot be read: {error.strerror}") from None

    @router.get("/runs/{run}/log/find", response_model=FoundOut, responses=documented(404, 422, 503))
    async def find(
        run: Id, attempt: Number = None, text: Text = None, rank: RankNames = (), first: First = 1,
        count: FindCount = MOST,
    ) -> Response:  # fmt: skip
        """Which lines of an attempt's log hold `text`, in any case, or are of a rank, or both."""
        return await looked(run, attempt, lambda file: found_json(file, state.service.base, text, rank, first, count))

    @router.get("/runs/{run}/log/ranks", response_model=RanksOut, responses=documented(404, 422, 503))
    async def ranks(run: Id, attempt: Number = None, first: First = 1) -> Response:
        """Which ranks and processes write in an attempt's log."""
        return await looked(run, attempt, lambda file: ranks_json(file, state.service.base, first))

    @router.get("/runs/{run}/diff/{other}", response_model=models.DiffOut, responses=documented(404, 422, 503))
    async def diff(
        run: Id,
        other: Annotated[str, Path(pattern=rf"{PATTERN}|^good$", description="A run, or `good`: the last that served", examples=["good"])],
        attempt: Number = None, other_attempt: Number = None,
    ) -> Response:  # fmt: skip
        """What this attempt has otherwise than another one: command line, variables, versions, seconds by phase."""

        def work(store: "Store") -> dict[str, Any]:
            row, now = one(store, run, attempt)
            if other == "good":
                fresh(store, row.target)
                then = store.last_good(row.target, now.began)
                if then is None:
                    raise Problem(404, f"{row.target} has not served before")
            else:
                then = one(store, other, other_attempt)[1]
            phases = [[(each.phase, each.title, each.seconds) for each in store.details(one)[0]] for one in (now, then)]
            return {
                "run": {"id": now.run, "attempt": now.number, "state": now.state},
                "other": {"id": then.run, "attempt": then.number, "state": then.state},
                "argv": argv_diff(now.argv, then.argv), "env": map_diff(now.env, then.env),
                "versions": map_diff(now.versions, then.versions), "phases": phase_diff(*phases),
                "arguments": map_diff(now.arguments, then.arguments),
            }  # fmt: skip

        return JSONResponse(await asked(work))

    @router.get("/runs/{run}/bundle", response_class=Response, responses={
        200: {"description": "An archive", "content": {"application/gzip": {"schema": {"type": "string"}}}},
        **documented(404, 422, 503),
    })  # fmt: skip
    async def bundle(run: Id) -> Response:
        """An archive to attach to an issue: masked logs, reports, command lines, versions, phases."""

        def work(store: "Store") -> Iterator[bytes]:
            row, attempts = known(store, run)
            logs = [(each.number, log_path(row, each), each.argv) for each in attempts]
            sent = _temporary()
            file = next(sent)  # from here on it is closed however this ends, also when nobody waits any more
            packed(file, run, _whole(store, row, attempts), logs, state.service.base)
            file.seek(0)
            return sent

        headers = {"content-disposition": f'attachment; filename="{run}.tar.gz"'}
        return StreamingResponse(await asked(work), media_type="application/gzip", headers=headers)

    return router


def _all(path: FilePath) -> Iterator[bytes]:
    """A whole log, masked, in pieces worth sending."""
    with open(path, "rb") as file:
        kept: list[bytes] = []
        for place, line in enumerate(masked_lines(file)):
            kept.append(line)
            if place % 500 == 499:
                yield b"".join(kept)
                kept.clear()
        yield b"".join(kept)


def _temporary() -> Iterator[Any]:
    """A file to be filled first, then what it holds."""
    with tempfile.TemporaryFile() as file:
        yield file
        while data := file.read(1 << 18):
            yield data


def _windows(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """(first line, how many) around some lines, joined where they touch."""
    found: list[tuple[int, int]] = []
    for number in numbers[:100]:
        begin, end = max(1, number - AROUND), number + AROUND + 1
        if found and begin <= found[-1][0] + found[-1][1]:
            found[-1] = (found[-1][0], end - found[-1][0])
        else:
            found.append((begin, end - begin))
    return found


def _run(row: "RunRow") -> dict[str, Any]:
    return {
        "id": row.id, "target": row.target, "host": row.host, "argv": row.argv, "began": row.began, "ended": row.ended,
        "state": row.state, "rule": row.rule, "text": row.text, "after": row.after,
    }  # fmt: skip


def _whole(store: "Store", run: "RunRow", attempts: "Sequence[AttemptRow]") -> dict[str, Any]:
    return {**_run(run), "attempts": [_attempt(each, *store.details(each)) for each in attempts]}


def _attempt(row: "AttemptRow", phases: "Sequence[PhaseRow]", findings: "Sequence[FindingRow]") -> dict[str, Any]:
    return {
        "number": row.number, "argv": row.argv, "env": row.env, "diff": row.diff, "via": row.via, "began": row.began,
        "ready_at": row.ready_at, "ended": row.ended, "state": row.state, "rule": row.rule, "exit": row.exit,
        "reason": row.reason, "versions": row.versions, "log": row.log, "log_size": row.log_size,
        "arguments": row.arguments, "source": row.source, "log_offset": row.log_offset,
        "phases": [{"phase": each.phase, "title": each.title, "seconds": each.seconds} for each in phases],
        "verdicts": [
            {"at": each.at, "rule": each.rule, "title": each.title, "stage": each.stage, "reason": each.reason,
             "line": each.line, "evidence": each.evidence, "remedies": each.remedies}
            for each in findings
        ],
    }  # fmt: skip
