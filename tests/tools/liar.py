"""A neighbor with a true key and a true place in the graph that keeps to the protocol and lies in its models.

It is a real peer of a testbed, run in the test's own process, whose pushes say what a lie makes of its model. On a complete
graph everybody sends it what they have trained, and has persisted before what they began the round with. So it writes down all
that went into each honest average, and what came out, without asking the code that made it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from safetensors.numpy import load_file
from tools.beds import Bed

from coordinator_free_bootstrap import load_graph
from peer.assembly import LocalSettings, assemble
from peer.core import effects as do
from peer.core.averaging import Vector
from peer.core.messages import ModelHeader, PushReply
from peer.core.model_store import SnapshotKey
from peer.process import transport_security
from peer.runtime import PeerRuntime
from peer.wire.codec import encode

Lie = Callable[[Vector, int, int], Vector]  # (what it has trained, round, to whom) -> what it says
Place = tuple[int, int]  # (round, neighbor)


class Liar(PeerRuntime):
    """One peer of a testbed that was started without it (``late``), for algorithms with one slot.

    Args:
        bed: where its neighbors run.
        peer_id: who it is.
        lie: what it says.

    Attributes:
        said: what it pushed to a neighbor in a round.
        answers: what became of that.
        heard: what a neighbor had trained.
        began: what a neighbor had begun the round with; the last round's end is one round more.
    """

    def __init__(self, bed: Bed, peer_id: int, lie: Lie) -> None:
        settings = LocalSettings(bed.place(peer_id).root)
        graph = load_graph(bed.directory / "graph.json")  # the testbed has written everybody's key into it
        super().__init__(assemble(peer_id, graph, settings), transport_security(peer_id, graph, settings))
        self._bed, self._lie = bed, lie
        self.said: dict[Place, Vector] = {}
        self.answers: dict[Place, PushReply] = {}
        self.heard: dict[Place, Vector] = {}
        first = self.bench.models.model(0).copy()  # everybody's: the handshake compares it
        self.began: dict[Place, Vector] = {(0, n): first for n in self.engine.neighbors}

    def take_part(self, seconds: float = 60.0) -> dict[str, Any]:
        """Lie from the first round to the last; return the testbed's last words when all others have ended, too."""

        async def run() -> str:
            async with asyncio.timeout(seconds):
                return await self.run()

        try:
            assert asyncio.run(run()) == "completed"
        finally:
            self.parts.lock.release()
        last = self._bed.finish()
        for neighbor in self.engine.neighbors:
            self._look(self.manifest.rounds, neighbor)
        return last

    async def _push(self, neighbor: int, header: ModelHeader, key: SnapshotKey, snapshot: Vector) -> PushReply:
        place = header.round_index, neighbor
        self.said[place] = self._lie(snapshot, *place)
        payload = encode(self.said[place], self.parts.schema, header.encoding)
        self.answers[place] = await self._links[neighbor].push(header, payload)
        return self.answers[place]

    def _fold_arrival(self, effect: do.Fold, stream: Any) -> float:
        place = effect.header.round_index, effect.header.sender
        self.heard[place] = stream.model.copy()
        if place not in self.began:
            self._look(*place)
        return super()._fold_arrival(effect, stream)

    def _look(self, round_index: int, neighbor: int) -> None:
        """Read what a neighbor that has sent must have persisted (I7); it stays there until we have sent in the next round."""
        path = self._bed.place(neighbor).checkpoints / f"checkpoint-{round_index:010d}" / "arrays.safetensors"
        self.began[round_index, neighbor] = load_file(path)["slot/0"]
