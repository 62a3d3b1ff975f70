"""The shell of one peer: executes the engine's effects with gRPC, a compute thread, a fold thread, and the disk.

One asyncio loop feeds the engine one event at a time. Training and evaluation run on the compute thread, decoding and folding on
the fold thread, checkpoints on the disk thread; each posts an event when it is done. Nothing here decides anything about
the protocol.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import Any

from peer import failpoints
from peer.core import events as ev
from peer.shell.working import Working
from peer.wire.client import NeighborLink
from peer.wire.server import PeerServer

log = logging.getLogger("peer")
FAREWELL_S = 2.0  # how long the last words to neighbors may take


class PeerRuntime(Working):
    """One running peer. `run` returns its end status: ``completed`` or ``left``."""

    async def run(self, on_listening: Callable[[int], None] | None = None) -> str:
        """Serve, take part until the end of the run or a request to leave, and return how it ended.

        Raises:
            ConfigError: the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        self._stopped = loop.create_future()
        self.bench.should_stop = self._should_stop
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        server = PeerServer(
            self,
            self._listen(),
            limits=self.manifest.limits,
            timeouts=self.manifest.timeouts,
            credentials=self._tls.server_credentials() if self._tls else None,
            identify=self._tls.identify if self._tls else None,
        )
        try:
            port = await server.start()
            self._open_links()
            self._record("start", self._start_fields(port))
            if on_listening:
                on_listening(port)
            self.post(ev.Tick())
            return await self._stopped
        finally:
            await self._close(server)

    def _start_fields(self, port: int) -> dict[str, Any]:
        for note in self.parts.notes:
            log.warning(note)
        verb = "resumes" if self.parts.resumed_from is not None else "starts"
        log.info(
            "%s at round %d of %d, listening on port %d, neighbors %s, incarnation %d",
            verb,
            self.engine.round_index,
            self.manifest.rounds,
            port,
            list(self.engine.neighbors),
            self.engine.incarnation,
        )
        return {
            "peer_id": self.peer_id,
            "port": port,
            "resumed_from": self.parts.resumed_from,
            "notes": self.parts.notes,
            "digests": self.parts.digests,
            "true_cluster": self.parts.true_cluster,
            "samples": self.bench.learner.count(),
            "parameters": self.parts.schema.size,
        }

    def _listen(self) -> str:
        if self.parts.settings.listen:
            return self.parts.settings.listen
        return self.graph.node(self.peer_id).address

    def _open_links(self) -> None:
        for neighbor in self.engine.neighbors:
            self._links[neighbor] = NeighborLink(
                neighbor,
                self.graph.node(neighbor).address,
                limits=self.manifest.limits,
                timeouts=self.manifest.timeouts,
                security=self._tls.channel(neighbor) if self._tls else None,
            )

    def _on_signal(self) -> None:
        if self._leave_now:
            log.warning("second signal: stopping at once")
            self._finish("left")
            return
        log.info("asked to stop: telling the neighbors and persisting; a second signal stops at once")
        self._leave_now = True
        self.post(ev.LeaveRequested())

    def _should_stop(self) -> bool:
        failpoints.reach("train.step")
        return self._leave_now

    async def _close(self, server: PeerServer) -> None:
        if self._timer:
            self._timer.cancel()
        self._leave_now = True
        for task in self._sending.values():
            task.cancel()
        pending = [task for task in self._tasks if not task.done()]
        if pending:
            await asyncio.wait(pending, timeout=FAREWELL_S)
        await server.stop(FAREWELL_S)
        for task in self._tasks:
            task.cancel()
        for link in self._links.values():
            await link.close()
        for pool in (self._compute, self._fold, self._disk):
            pool.shutdown(wait=True, cancel_futures=True)
        self.history.close()

    def status(self) -> dict[str, Any]:
        """Return what this peer is doing, as JSON-ready values."""
        engine, now = self.engine, asyncio.get_running_loop().time()
        described = engine.membership.as_dict(now)["neighbors"]
        waiting_for, owed_to = engine.waiting_for(), engine.owed_to()
        return {
            "peer_id": self.peer_id,
            "incarnation": engine.incarnation,
            "phase": str(engine.phase()),
            "stage": str(engine.stage),
            "round_index": engine.round_index,
            "rounds_total": self.manifest.rounds,
            "persisted_round": engine.persisted_round,
            "waiting_for": waiting_for,
            "owed_to": owed_to,
            "waiting_s": max(0.0, now - engine.exchange_began_at) if waiting_for or owed_to else 0.0,
            "suspicion_s": self.manifest.timeouts.suspicion_s,
            "neighbors": {str(n): str(state) for n, state in engine.membership.states.items()},
            "neighbor_rounds": {str(n): view.round_index for n, view in engine.views.items()},
            "silent_s": {n: row["silence_s"] for n, row in described.items()},
            "accuracy": self.last_round.get("accuracy"),
            "cluster_index": self.last_round.get("cluster_index"),
            "totals": dict(engine.totals),
            "refusals": {str(code): count for code, count in engine.refusals.items()},
            "storage_error": engine.storage_error or self.history_error,
            "open_streams": self.calls.open_streams(),
        }
