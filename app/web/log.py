"""The routes of a target's log: lines by number, and where a text stands."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from app.logfile import LogFile
from app.web.problems import Problem, documented
from app.web.state import State

MOST = 1000
"""Lines in one answer."""
Name = Annotated[
    str, Path(max_length=100, description="A target's name; `server` where there is one.", examples=["server"])
]
First = Annotated[int, Query(ge=1, le=2**53, alias="from", description="The number of the first line, from 1.")]
Count = Annotated[int, Query(ge=1, le=MOST, description="How many lines at most.")]


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
    """Numbers of the lines that hold the text, and where to go on; `more` is null at the end."""

    found: list[int]
    more: int | None


def routes(state: State) -> APIRouter:
    """The routes, over the targets of the service."""
    router = APIRouter(prefix="/api/targets/{target}/log", tags=["targets"])
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

    async def asked(work: Any, *given: Any) -> Any:
        try:
            return await run_in_threadpool(work, *given)
        except OSError as error:
            raise Problem(404, f"the log cannot be read: {error.strerror}") from None

    @router.get("", response_model=LogOut, responses=documented(404, 422))
    async def lines(target: Name, first: First = 1, count: Count = 200) -> Response:
        """Lines of the log of the current attempt, by number. `from` beyond the end answers none, and `lines`."""
        which, lines, rows = await asked(log_of(target).rows, first, count)
        shown = [{"number": each.number, "text": each.text, "size": each.size} for each in rows]
        return JSONResponse({"log": which, "lines": lines, "rows": shown})

    @router.get("/find", response_model=FoundOut, responses=documented(404, 422))
    async def find(
        target: Name, text: Annotated[str, Query(min_length=1, max_length=200)], first: First = 1, count: Count = MOST
    ) -> Response:
        """Which lines hold `text`, in any case. A search that is not over says where to go on."""
        found, more = await asked(log_of(target).find, text, first, count)
        return JSONResponse({"found": found, "more": more})

    return router
