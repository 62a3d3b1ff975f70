"""A Byzantine neighbor: its key is pinned and it follows the protocol, but it sends models that it has not trained.

It is a peer of a testbed and runs in the process of the test. On a complete graph every neighbor sends it the model that it has
trained, after a checkpoint of the model that it began the round with. The attacker records both. So a test knows the input
and the result of every average of an honest peer, and does not ask the code under test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from safetensors.numpy import load_file
from tools.beds import Bed
from tools.running import PATIENCE_S

from coordinator_free_bootstrap import load_graph
from peer.core import effects as do
from peer.core import events as ev
from peer.core.averaging import Vector
from peer.core.encoding import Payload, decode, encode
from peer.core.messages import ModelHeader, PushReply
from peer.host.receiving import Receiving
from peer.host.sending import Sending
from peer.runtime.assembly import LocalSettings, assemble
from peer.runtime.process import transport_security
from peer.runtime.world import AsyncioWorld

Attack = Callable[[Vector, int, int], Vector]  # (trained model, round, receiver) -> the model that is sent
Place = tuple[int, int]  # (round, neighbor)


class ByzantinePeer(AsyncioWorld):
    """One peer of a testbed that was started without it (``late``), for algorithms with one slot.

    Args:
        bed: where its neighbors run.
        peer_id: a node of the testbed's graph.
        attack: makes the models that it sends.

    Attributes:
        sent: the model that it pushed to a neighbor in a round.
        replies: the reply to that push.
        received: the model that a neighbor had trained in a round.
        at_start: a neighbor's model at the start of a round; one round after the last: its final model.
    """

    def __init__(self, bed: Bed, peer_id: int, attack: Attack) -> None:
        settings = LocalSettings.at(bed.place(peer_id).root)
        graph = load_graph(bed.directory / "graph.json")  # the testbed has pinned all keys in it
        super().__init__(assemble(peer_id, graph, settings), transport_security(peer_id, graph, settings))
        self._bed, self._attack = bed, attack
        self.host.receiving.fold = self._record_and_fold  # type: ignore[method-assign]
        self.host.sending.push_answered = self._note_reply  # type: ignore[method-assign]
        self.sent: dict[Place, Vector] = {}
        self.replies: dict[Place, PushReply] = {}
        self.received: dict[Place, Vector] = {}
        initial = self.host.workspace.models.model(
            0
        ).copy()  # the same for all peers: the handshake compares its digest
        self.at_start: dict[Place, Vector] = {(0, n): initial for n in self.host.state.neighbors}

    def take_part(self, seconds: float = PATIENCE_S) -> dict[str, Any]:
        """Run all rounds, wait for the end of all other peers, and return the result of the testbed."""

        async def run() -> str:
            async with asyncio.timeout(seconds):
                return await self.run()

        try:
            assert asyncio.run(run()) == "completed"
        finally:
            self.parts.lock.release()
        result = self._bed.finish()
        for neighbor in self.host.state.neighbors:
            self._read_checkpoint(self.manifest.rounds, neighbor)
        return result

    async def _push(self, neighbor: int, message: Callable[[], tuple[ModelHeader, Payload]]) -> ev.SendAnswered:
        header, payload = message()
        place = header.round_index, neighbor
        trained = decode(payload, self.host.format.schema, header.encoding)
        self.sent[place] = self._attack(trained, *place)
        false_payload = encode(self.sent[place], self.host.format.schema, header.encoding)
        return await super()._push(neighbor, lambda: (header, false_payload))

    def _note_reply(self, neighbor: int, header: ModelHeader, reply: PushReply) -> ev.SendAnswered:
        self.replies[header.round_index, neighbor] = reply
        return Sending.push_answered(self.host.sending, neighbor, header, reply)

    def _record_and_fold(self, effect: do.FoldArrival) -> None:
        place = effect.header.round_index, effect.header.sender
        assert effect.arrival.model is not None, "the run's encoding must be float32"
        self.received[place] = effect.arrival.model.copy()
        if place not in self.at_start:
            self._read_checkpoint(*place)
        Receiving.fold(self.host.receiving, effect)

    def _read_checkpoint(self, round_index: int, neighbor: int) -> None:
        """Read the checkpoint of a neighbor that has sent in a round; it keeps it until we have sent in the next round."""
        path = self._bed.place(neighbor).checkpoints / f"checkpoint-{round_index:010d}" / "arrays.safetensors"
        self.at_start[round_index, neighbor] = load_file(path)["slot/0"]
