"""What holds in runs with secure sums, beside what holds in all: each sum is that of its members' models, and opens nothing else.

- I21: a peer masks its model of a round once for each receiver, over all lives of its disk, and reveals for one set of members.
- I22: a pull gives the mean of an opened sum, and never a model that was trained.
- I9, of all runs: the bits of a model after a round follow from its own and the mean, here by whole numbers of members' models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import Refusal
from peer.core import effects as do
from peer.core.averaging import Vector
from peer.core.messages import Control, ModelHeader, Opening, PullRequest, SumMessage
from peer.core.model_store import SnapshotKey
from peer.secure_sum.keys import Unsigned
from peer.secure_sum.sums import SecureSums
from tests.simulation.invariants import Checker
from tests.tools.sums import oracle

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

Place = tuple[int, int, int, int]  # sender and its disk, receiver, round


def place_of(process: Process, receiver: int, round_index: int) -> Place:
    """Return where a message belongs; another disk has another high part of incarnations."""
    return process.peer_id, process.engine.state.incarnation >> 20, receiver, round_index


def sums_of(world: World, peer_id: int, life: int) -> SecureSums | None:
    """Return the secrets of a new process; None in a run without sums."""
    if world.manifest.secure_sum is None:
        return None
    random = world.random(f"masks of peer {peer_id}, life {life}")
    return SecureSums(peer_id, world.machines[peer_id].graph, Unsigned(), random.randbytes)


class SummedChecker(Checker):
    """The invariants of a run with secure sums."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.plain: dict[tuple[int, int, int], Vector] = {}  # models offered, by sender, incarnation and round
        self.masked: dict[Place, bytes] = {}
        self.revealed: dict[Place, bytes] = {}
        self.means: set[bytes] = set()
        self.summed: dict[tuple[int, int], tuple[int, ...]] = {}  # members of what was opened, by peer and round

    def sends(self, process: Process, neighbor: int, header: ModelHeader, payload: NDArray[np.uint8]) -> None:
        """A masked model is about to be sent."""
        place = place_of(process, neighbor, header.round_index)
        data = payload.tobytes()
        self.require(self.masked.setdefault(place, data) == data, "I21", f"{place}: masked in two ways")
        self.files[header.key] = process.graph
        snapshot = process.workspace.models.get_snapshot(SnapshotKey(header.round_index, header.step, header.slot))
        self.plain[process.peer_id, header.incarnation, header.round_index] = snapshot
        self.require(data != snapshot.tobytes(), "I21", f"{place}: not masked")
        disk = process.machine.disk
        self.require(
            disk.durable_round >= header.round_index, "I7", f"{place} is sent, {disk.durable_round} is on disk"
        )

    def tells(self, process: Process, neighbor: int, message: Control) -> None:
        """A message is about to be sent."""
        if isinstance(message, SumMessage) and message.kind is Opening.REVEALS:
            place = place_of(process, neighbor, message.round_index)
            first = self.revealed.setdefault(place, message.data)
            self.require(first == message.data, "I21", f"{place}: reveals for two sums")
            self.mark("revealed")

    def folds(self, process: Process, effect: do.FoldArrival) -> None:
        """A masked model is about to be added."""
        header, shadow = effect.header, self.shadows[process]
        self.require(header.sender in process.graph.neighbors(process.peer_id), "I6", f"folded from {header.sender}")
        self.require(not shadow.tensors_busy, "I1", "a fold runs beside other work on tensors")
        place = (header.sender, header.incarnation >> 20, process.peer_id, header.round_index)
        self.require(self.masked[place] == effect.arrival.buffer.tobytes(), "I3", f"{place} is not what was sent")
        key = (header.sender, header.round_index, header.step, header.slot)
        self.require(key not in process.lineage, "I2", f"peer {process.peer_id} folds {key} twice")
        process.lineage.add(key)
        self.mark("folded")
        shadow.observed = None

    def has_folded(self, process: Process, effect: do.FoldArrival) -> None:
        """A masked model is added: the sum is compared when it is opened."""

    def works(self, process: Process, effect: do.Work) -> None:
        """Work on tensors begins: at the close, what the sum must be is known."""
        sums, shadow = process.engine.state.sums, self.shadows[process]
        if effect.kind == "close" and sums is not None:
            shadow.folded.clear()
            if sums.is_open and sums.members:
                weights = process.algorithm.weights_at(process.peer_id)
                roster = {each.peer: each.incarnation for each in sums._received.roster.peers}  # type: ignore[attr-defined]
                models = [(self.plain[n, roster[n], effect.round_index], weights[n]) for n in sums.members]
                mean = oracle(models, weights, self.world.manifest.secure_sum or 0)
                self.means.add(mean.tobytes())
                shadow.folded[0].append((mean, sum(process.algorithm.mixing_weight(n) for n in sums.members)))
                self.mark("sum opened")
                self.summed[process.peer_id, effect.round_index] = sums.members
            elif sums.problem:
                self.mark("sum lost")
        super().works(process, effect)

    def pulls(self, process: Process, request: PullRequest, answer: tuple[ModelHeader, bytes] | Refusal) -> None:
        """A neighbor pulls a model."""
        if isinstance(answer, tuple):
            self.require(
                answer[1] in self.means, "I22", f"peer {process.peer_id} gives a model that is no mean of a sum"
            )
            self.mark("pulled a mean")
