"""The routes of a target's log: lines by number, where a text stands, and whose the lines are."""

from collections.abc import Collection, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from app.knowledge import Base
from app.logfile import LogFile, Row
from app.ranks import Ranks
from app.web.problems import Problem, documented
from app.web.state import State

MOST = 1000
"""Lines in one answer."""
Name = Annotated[
    str, Path(max_length=100, description="A target's name; `server` where there is one.", examples=["server"])
]
First = Annotated[int, Query(ge=1, le=2**53, alias="from", description="The number of the first line, from 1.")]
Count = Annotated[int, Query(ge=1, le=MOST, description="How many lines at most.")]
FindCount = Annotated[int, Query(ge=1, le=20_000, description="How many numbers at most.")]
Text = Annotated[
    str | None, Query(min_length=1, max_length=200, description="What a line is to hold.", examples=["error"])
]
RankNames = Annotated[
    Sequence[Annotated[str, Field(max_length=100)]],
    Query(
        max_length=100, description="Only lines of these ranks; the empty one is lines of no rank.", examples=["TP0"]
    ),
]


class RowOut(BaseModel):
    """One line: no colours, secrets masked. `size` is its length in bytes where it was cut, else 0."""

    number: int
    text: str
    size: int


class LogOut(BaseModel):
    """Lines of a log. `log` names the file: with another name, numbers from before mean nothing."""

    log: str = Field(examples=["fe01-9ac2"])
    lines: int = Field(description="How many lines the log has by now.")
    rows: list[RowOut]


class FoundOut(BaseModel):
    """Numbers of the lines that were found, and where to go on; `more` is null at the end of the log."""

    found: list[int] = Field(examples=[[103, 128]])
    more: int | None
    lines: int = Field(description="How many lines the log has by now.")


class RankOut(BaseModel):
    """How many lines one rank or process wrote; "" is none."""

    rank: str = Field(examples=["TP0"])
    lines: int


class RanksOut(BaseModel):
    """Whose the lines are, and where to go on; `more` is null at the end of the log."""

    ranks: list[RankOut]
    more: int | None


def rows_json(file: LogFile, first: int, count: int) -> dict[str, Any]:
    """A `LogOut`. OSError when the log cannot be read."""
    which, lines, rows = file.rows(first, count)
    return {"log": which, "lines": lines, "rows": [shown(each) for each in rows]}


def shown(row: Row) -> dict[str, Any]:
    """A `RowOut`."""
    return {"number": row.number, "text": row.text, "size": row.size}


def found_json(
    file: LogFile, base: Base, text: str | None, ranks: Collection[str], first: int, count: int
) -> dict[str, Any]:
    """A `FoundOut`. Problem 422 when nothing is searched for; OSError when the log cannot be read."""
    if not text and not ranks:
        raise Problem(422, "name a text or a rank to search for")
    reader = Ranks(base.engines) if ranks else None
    found, more, lines = file.find(text or "", first, count, ranks, reader)
    return {"found": found, "more": more, "lines": lines}


def ranks_json(file: LogFile, base: Base, first: int) -> dict[str, Any]:
    """A `RanksOut`. OSError when the log cannot be read."""
    counts, more = file.ranks(first, Ranks(base.engines))
    return {"ranks": [{"rank": rank, "lines": lines} for rank, lines in counts.items()], "more": more}


def routes(state: State) -> APIRouter:
    """The routes, over the targets of the service."""
    router = APIRouter(prefix="/api/targets/{target}/log", tags=["targets"])
    base = state.service.base
    kept: dict[str, LogFile] = {}

    def log_of(target: str) -> LogFile:
        found = state.service.targets.get(target)
        if found is None:
            raise Problem(404, f"there is no target {target!r}")
        path = found.hub.status.get("log")
        if not path:
            raise Problem(404, f"{target} has written no log yet")
        file = kept.get(target)
        if file is None or file.path != path:
            file = kept[target] = LogFile(str(path))
        return file

    async def asked(work: Any, *given: Any) -> Response:
        try:
            return JSONResponse(await run_in_threadpool(work, *given))
        except OSError as error:
            raise Problem(404, f"the log cannot be read: {error.strerror}") from None

    @router.get("", response_model=LogOut, responses=documented(404, 422))
    async def lines(target: Name, first: First = 1, count: Count = 200) -> Response:
        """Lines of the log of the current attempt, by number. `from` beyond the end answers none, and `lines`."""
        return await asked(rows_json, log_of(target), first, count)

    @router.get("/find", response_model=FoundOut, responses=documented(404, 422))
    async def find(
        target: Name, text: Text = None, rank: RankNames = (), first: First = 1, count: FindCount = MOST
    ) -> Response:
        """Which lines hold `text`, in any case, or are of a rank, or both. A search that is not over says where to go
        on."""
        return await asked(found_json, log_of(target), base, text, rank, first, count)

    @router.get("/ranks", response_model=RanksOut, responses=documented(404, 422))
    async def ranks(target: Name, first: First = 1) -> Response:
        """Which ranks and processes write in the log, by the prefixes of its lines. A line without one is counted with
        the one before it. A count that is not over says where to go on."""
        return await asked(ranks_json, log_of(target), base, first)

    return router
