"""The graph file of a running peer: on SIGHUP, or when it changes, the peer takes the new one between two rounds.

On SIGHUP it also takes a new key of its own.

A change is a restart without the end of the process: the present round is closed and saved, neighbors hear that this peer is
away for a moment, and the peer is built again from its checkpoint under the new file. A file that cannot be used leaves the
peer as it is, with a line in the log.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from coordinator_free_bootstrap import Graph, parse_graph
from coordinator_free_bootstrap.errors import PeerError, PolicyError, RemovedError
from coordinator_free_bootstrap.graph_file import graph_content
from coordinator_free_bootstrap.rates import check_limits
from coordinator_free_bootstrap.revision import changes, require_next
from peer import failpoints
from peer.algorithms.registry import algorithm_for
from peer.identity.certificates import Certificate
from peer.identity.files import read_file
from peer.identity.signing import require_signature
from peer.runtime.assembly import LocalSettings
from peer.runtime.process import logged, opened, opened_aside, require_allowed, run_to_end, transport_security
from peer.runtime.results import exit_code_of
from peer.runtime.schedule import Schedule
from peer.runtime.signals import Signals
from peer.runtime.windows import run_in_windows
from peer.runtime.world import AsyncioWorld
from peer.tasks.given_keys import warn_without_effect

log = logging.getLogger("peer")
WATCH_S = 2.0  # between two looks at the file
Signature = tuple[int, ...]


class SharedFile:
    """The graph file that all peers share, at this peer.

    Args:
        path: of the file.
        watch: take a new file as soon as it is there, not on SIGHUP only.
        owner: certificate of the owner, who must sign the file, or let one sign that the file before names; None: nobody need.

    Attributes:
        graph: of the last file that was read and taken.

    Raises:
        GraphError, ConfigError: as `load_graph`.
        IdentityError: it is not signed as it should be, or the owner's certificate cannot be read.
    """

    def __init__(self, path: Path, *, watch: bool = False, owner: Path | None = None) -> None:
        self.path = path.absolute()  # the task may change the working directory
        self.watch = watch
        self._owners = (
            [] if owner is None else [Certificate.from_pem(read_file(owner, "owner's certificate"), str(owner))]
        )
        self._read = self._signature()
        self.graph = self._load(())

    async def read(self) -> Graph:
        """Return the graph of the present file."""
        self._read = self._signature()
        return await asyncio.to_thread(self._load, self.graph.owners)

    def _load(self, named: tuple[str, ...]) -> Graph:
        content = graph_content(self.path)
        graph = parse_graph(content, str(self.path))
        if self._owners:
            others = [Certificate.from_text(text, f"{self.path}: owners") for text in named]
            require_signature(content, [*self._owners, *others], str(self.path))
        return graph

    @property
    def is_new(self) -> bool:
        """Whether the file is another one than the last that was read."""
        return self._signature() != self._read

    async def until_new(self) -> None:
        """Return once the file is another one, and was the same at two looks: one that is being copied is not read."""
        before: Signature | None = None
        while not self.is_new or before != self._signature():
            before = self._signature()
            await asyncio.sleep(WATCH_S)

    def _signature(self) -> Signature:
        try:
            facts = self.path.stat()
        except OSError:
            return ()
        return facts.st_mtime_ns, facts.st_size, facts.st_ino


class Revisions:
    """Opens one peer with the present graph file, and again with each that it takes.

    Args:
        peer_id: of the peer.
        file: its graph file.
        settings: local choices.
    """

    def __init__(self, peer_id: int, file: SharedFile, settings: LocalSettings) -> None:
        self._peer_id, self._file, self._settings = peer_id, file, settings
        self._world: AsyncioWorld | None = None
        self._next: Graph | None = None  # read, and not opened yet
        self._taking: Graph | None = None  # opened, and the peer has not begun under it
        self._stopped_at = 0.0
        self._reading: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()  # a file that is read meanwhile would be asked of the peer before

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look for new files while the block runs."""
        watching = asyncio.ensure_future(self._watch()) if self._file.watch else None
        if self._file.is_new:  # since it was loaded
            self.ask()
        try:
            yield
        finally:
            for task in (watching, self._reading):
                if task is not None:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await self._file.until_new()
            self.ask()
            if self._reading is not None:
                await self._reading

    def open(self) -> AsyncioWorld:
        """Return the peer, ready to run, with the next graph file if there is one that works, else with the present one.

        Raises:
            PeerError: it cannot start with the present file.
        """
        self._taking, self._next = self._next, None
        self._require_member(self._taking or self._file.graph)
        if self._taking is not None:
            try:
                self._world = opened(self._peer_id, self._taking, self._settings)
            except Exception as error:  # whatever it is: under the present file the peer worked
                self._taking = None
                self._refuse(error)
            else:
                self._world.on_began = self._began
                return self._world
        self._world = opened(self._peer_id, self._file.graph, self._settings)
        return self._world

    def _require_member(self, graph: Graph) -> None:
        """Raise RemovedError for a former peer."""
        if any(each.id == self._peer_id for each in graph.removed):
            raise RemovedError(
                f"peer {self._peer_id} was removed from the federation, says graph file {self._file.path}"
            )

    async def ready(self) -> AsyncioWorld:
        """Return the peer, ready to run; see `open`."""
        return self.open()

    async def ready_aside(self) -> AsyncioWorld:
        """Return the peer, ready to run, opened on another thread; see `open`."""
        async with self._opening:
            return await opened_aside(self.open)

    async def run(self, world: AsyncioWorld) -> str:
        """Run an opened peer and return how it ended: ``changed`` if it is to be opened again, with another file.

        Raises:
            PeerError: as `run_to_end`; not where it could not begin under a new file.
        """
        try:
            status = await run_to_end(world)
        except Exception as error:
            if self._taking is None or world.began:
                raise
            self._taking = None
            self._refuse(error)
            status = "changed"
        self._stopped_at = time.monotonic()
        if status == "changed":
            failpoints.reach("change.stopped")
        return status

    def ask(self) -> None:
        """Read the file, and ask the peer to change to it."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._take())
        else:  # what is being read may be the file before
            self._reading.add_done_callback(lambda _: self.ask())

    async def _take(self) -> None:
        async with self._opening:
            await self._read_and_ask()

    async def _read_and_ask(self) -> None:
        present = self._next or self._taking or self._file.graph
        try:
            graph = await self._file.read()
            if graph == present and not self._has_new_key(graph):
                log.info("graph file %s: nothing has changed", self._file.path)
                return
            require_next(self._file.graph, graph)
            removed = self._peer_id in {each.id for each in graph.removed}
            if not removed:
                self._check(graph)
        except Exception as error:  # a file must not end the peer
            if isinstance(error, PolicyError) and self._world is not None:  # `opened` writes its own refusals
                self._world.audit.policy(str(error))
            self._refuse(error)
            return
        for sentence in changes(self._file.graph, graph):
            log.info("new graph file: %s", sentence)
        failpoints.reach("change.taken")
        if removed:
            log.error("peer %d was removed from the federation, says graph file %s", self._peer_id, self._file.path)
        self._next = graph
        if self._world is not None:
            self._world.change(graph.from_round, removed=removed)

    def _check(self, graph: Graph) -> None:
        """Check what a start would, without the task, which is large.

        Raises:
            PeerError: the peer cannot start with this file.
        """
        settings = self._settings
        require_allowed(self._peer_id, graph, settings)  # before a file of the run is executed
        check_limits(graph, self._peer_id, settings.upload_limit, settings.download_limit)
        algorithm_for(graph, self._peer_id)
        warn_without_effect(graph.manifest, [], log.warning)
        transport_security(self._peer_id, graph, settings)

    def _has_new_key(self, graph: Graph) -> bool:
        """Return whether the files of the peer's own key are other ones than those that it uses."""
        used = self._world and self._world.fingerprint
        tls = transport_security(self._peer_id, graph, self._settings) if used else None
        return tls is not None and tls.fingerprint != used

    def _refuse(self, error: Exception) -> None:
        trace = None if isinstance(error, PeerError) else error  # else it is a bug of this program
        text = "graph file %s was not taken, and this peer goes on with the one before: %s"
        log.error(text, self._file.path, error, exc_info=trace)

    def _began(self) -> None:
        """The peer listens, and its state belongs to the new file."""
        failpoints.reach("change.began")
        assert self._taking is not None and self._world is not None
        before, self._file.graph, self._taking = self._file.graph, self._taking, None
        seconds, names = time.monotonic() - self._stopped_at, (before.run_digest[:12], self._file.graph.run_digest[:12])
        log.info("changed from graph file %s to %s: away for %.2f s", *names, seconds)
        self._world.tell("revision", {"before": names[0], "after": names[1]})


def run_peer_with_file(
    peer_id: int, file: SharedFile, settings: LocalSettings, signals: Signals, schedule: Schedule | None = None
) -> int:
    """Run one peer as a process to its end, under each graph file that it takes, and return its exit code.

    Args:
        peer_id: which node of the graph this process is.
        file: the graph file.
        settings: local choices.
        signals: of this process.
        schedule: when the peer may work; None: always.
    """

    async def to_end() -> str:
        revisions = Revisions(peer_id, file, settings)
        signals.hangup = revisions.ask
        async with revisions.watching():
            if schedule is not None:
                with signals.in_loop():
                    return await run_in_windows(revisions.ready, schedule, signals, settings.metrics, revisions.run)
            world, status = revisions.open(), "changed"
            with signals.in_loop():  # not before: a signal ends the first start at once
                while status == "changed":
                    signals.tell = world.on_signal
                    if signals.came:
                        world.leave()
                    if (status := await revisions.run(world)) == "changed":
                        world = revisions.open()
            return status

    try:
        return exit_code_of(asyncio.run(to_end()))
    except Exception as error:
        return logged(error, trace=settings.traceback)
