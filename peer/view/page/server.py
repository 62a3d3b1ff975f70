"""The server of the page: static files, and one stream of states per tab (server-sent events)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from coordinator_free_bootstrap.strict_json import dumps
from peer.view.page.access import LOOPBACK, Access, AccessGuard
from peer.view.page.files import STATIC
from peer.view.page.film import Film

REFRESH_S = 0.5  # between two reads of the run's files
QUIET_S = 15.0  # without news, after which a stream says that it lives
T = TypeVar("T")


class Source(Protocol):
    """A run that grows; `directory` is where its files are, as text for people."""

    film: Film
    directory: str

    def refresh(self) -> object:
        """Read what is new; blocks for the time of reading."""


class Streams:
    """The newest cursor of a run, and the streams that wait for it to move."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.epoch = secrets.token_hex(4)  # cursors of another start of this server number other events
        self._thread = ThreadPoolExecutor(1, "page")  # one: nothing reads the run while it grows
        self._moved = asyncio.Condition()
        self._empty = False  # whether the files were read, and have no run yet
        self._film = (0, "")  # the cursor of the last message with all of the run, and that message

    @property
    def _newest(self) -> int:
        return self.source.film.log.cursor

    async def follow(self) -> None:
        """Read the run again and again, until cancelled."""
        while True:
            before = self._newest
            await self._apart(self.source.refresh)
            empty, self._empty = self._empty, not self._newest
            if self._newest != before or self._empty > empty:
                async with self._moved:
                    self._moved.notify_all()
            elif self._film[0] != before:  # time to prepare what the next tab will ask for
                await self._apart(partial(self._message, 0))
            await asyncio.sleep(REFRESH_S)

    async def messages(self, last: str) -> AsyncIterator[str]:
        """Yield the events of one stream; `last` is the id of the last event that the tab has, or "".

        A tab of this epoch gets what came since; any other gets all of the run. Event ``waiting`` says that there is none yet.
        """
        epoch, _, text = last.partition("-")
        cursor = int(text) if epoch == self.epoch and text.isdecimal() else 0
        told_empty = False
        yield f"retry: {int(1000 * REFRESH_S)}\n\n"
        while True:
            if self._empty and not told_empty:
                told_empty = True
                yield f"event: waiting\ndata: {dumps({'directory': self.source.directory})}\n\n"
            try:
                async with asyncio.timeout(QUIET_S), self._moved:
                    while self._newest <= cursor and not (self._empty and not told_empty):
                        await self._moved.wait()
                    if self._newest <= cursor:
                        continue
            except TimeoutError:
                yield ": quiet\n\n"
                continue
            text, cursor = await self._apart(partial(self._message, cursor))
            yield text

    def _message(self, cursor: int) -> tuple[str, int]:
        film, newest = self.source.film, self._newest
        if not cursor and newest == self._film[0]:
            return self._film[1], newest
        kind, message = film.message(cursor)
        data = dumps(message, separators=(",", ":"))
        text = f"event: {kind}\nid: {self.epoch}-{newest}\ndata: {data}\n\n"
        if kind == "film":
            self._film = newest, text
        return text, newest

    async def _apart(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def page_app(source: Source, access: Access, hosts: frozenset[str] = LOOPBACK) -> AccessGuard:
    """Return the ASGI application of the page of a run.

    Args:
        source: the run.
        access: its link and its cookie.
        hosts: names that the Host header may have.
    """
    streams = Streams(source)

    @asynccontextmanager
    async def following(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(streams.follow())
        try:
            yield
        finally:
            task.cancel()

    async def index(request: Request) -> FileResponse:
        return FileResponse(STATIC / "index.html")

    async def stream(request: Request) -> StreamingResponse:
        last = request.headers.get("last-event-id") or request.query_params.get("after", "")
        return StreamingResponse(streams.messages(last), media_type="text/event-stream")

    routes = [Route("/", index), Route("/stream", stream), Mount("/", StaticFiles(directory=STATIC))]
    return AccessGuard(Starlette(routes=routes, lifespan=following), access, hosts)
