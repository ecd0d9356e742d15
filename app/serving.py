"""A service and where to listen in; the web API on a thread beside whatever else is done, out.

The web's libraries are imported on that thread: nothing waits for them.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.service import Service

if TYPE_CHECKING:
    from fastapi import FastAPI

    from app.knowledge import Base
    from app.service import Target
    from app.web.access import Access
    from app.web.server import Web


@dataclass(frozen=True, slots=True)
class Api:
    """Where the API is. `listen` is None for the default address, which may also be taken; `hosts` are further names
    that it answers under."""

    listen: str | None = None
    hosts: tuple[str, ...] = ()
    off: bool = False


DEFAULT = "127.0.0.1:8420"


def access_from(api: Api, host: str, environ: MutableMapping[str, str]) -> Access:
    """Who may use an API that listens at `host`. The tokens are taken out of `environ`: the engine needs none.

    ValueError for tokens that are too short, and when others can reach the address and there is none.
    """
    from app.web.access import Access, from_environment, is_loopback

    tokens = from_environment(environ)
    for token in tokens:
        environ.pop(f"BRINGUP_{token.role.upper()}_TOKEN")
    local = is_loopback(host)
    if not local and not tokens:
        raise ValueError(
            f"others can reach {host}: put a token into BRINGUP_CONTROL_TOKEN (and one that only reads into "
            "BRINGUP_READ_TOKEN); `bringup token` makes them"
        )
    return Access(tokens=tokens, hosts=api.hosts, loopback=local)


@contextlib.contextmanager
def beside(api: Api, base: Base, root: Path, targets: Sequence[Target], quiet: bool = False) -> Iterator[Web | None]:
    """The API while the block runs; None when it is off or its default address is taken, which is said.

    ValueError for an address that cannot be listened at.
    """
    if api.off:
        yield None
        return
    from app.web.server import Listen, ListenError, Web

    listen = Listen.read(api.listen or DEFAULT)
    access = access_from(api, listen.host, os.environ)
    service = Service(base, root, {target.name: target for target in targets})

    def make() -> FastAPI:
        from app.web.app import create_app

        return create_app(service, access)

    try:
        web = Web(listen, make)
    except ListenError as error:
        if api.listen is not None:
            raise ValueError(str(error)) from error
        print(f"bringup: no web API: {error}; `--listen` names another address", file=sys.stderr)
        yield None
        return
    if not quiet:
        print(f"bringup: web API at {web.url}/docs", file=sys.stderr, flush=True)
    web.start()
    try:
        yield web
    finally:
        web.stop()
        if web.failure is not None:
            print(f"bringup: the web API has failed: {web.failure}", file=sys.stderr)
