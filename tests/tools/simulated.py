"""Simulated runs for tests: run a graph on the `simulated` backend and read each peer's results.

Tests of algorithms use only this module; how a simulated peer stores its results is known here alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import RefusalCode
from peer.algorithms.base import Algorithm
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector
from peer.lab.network import SimulatedPeer, VirtualNetwork
from peer.lab.simulated import RoundWatch, SimulatedSettings, simulated_peers


class Result:
    """One simulated peer: its models, its algorithm's state and its history, before, during and after the run."""

    def __init__(self, peer: SimulatedPeer) -> None:
        self._peer = peer
        self.peer_id: int = peer.peer_id
        self.algorithm: Algorithm = peer.host.algorithm
        self.workspace: Workspace = peer.host.workspace
        self.learner: Any = self.workspace.learner

    @property
    def models(self) -> list[Vector]:
        """The model of each slot."""
        return [self.workspace.models.model(slot) for slot in range(len(self.workspace.models))]

    @property
    def personalized(self) -> Vector:
        """The model of the end of the run."""
        assert self.workspace.personalized is not None
        return self.workspace.personalized

    @property
    def state(self) -> Any:
        """The algorithm's state, of the class that the algorithm declares."""
        return self.workspace.state

    @property
    def optimizers(self) -> dict[str, Vector]:
        """The kept state of optimizers."""
        return self.workspace.optimizers

    @property
    def totals(self) -> dict[str, int]:
        """The engine's counters; a missing counter is 0."""
        return self._peer.host.state.totals

    @property
    def refusals(self) -> dict[RefusalCode, int]:
        """The number of refused messages by code; a missing code is 0."""
        return self._peer.host.state.refusals

    @property
    def history(self) -> list[dict[str, Any]]:
        """One row for each completed round."""
        return self._rows("round")

    @property
    def final(self) -> dict[str, Any]:
        """The row that ends the history, with the metrics of the final phase."""
        return self._rows("end")[-1]

    def _rows(self, wanted: str) -> list[dict[str, Any]]:
        return [fields for kind, fields in self._peer.recording.lines if kind == wanted]


class Peers(list[Result]):
    """The peers of one run, by id, and their network."""

    def __init__(self, graph: Graph) -> None:
        self.after_round: Callable[[int], None] = lambda round_index: None
        watch = RoundWatch(len(graph.nodes), lambda completed, accuracy: self.after_round(completed - 1))
        self.network = VirtualNetwork(on_record=watch.record)
        super().__init__(map(Result, simulated_peers(graph, SimulatedSettings(), self.network).values()))


def peers_of(graph: Graph) -> Peers:
    """Return the peers of a graph before their first round."""
    return Peers(graph)


def finish(peers: Peers, after_round: Callable[[int], None] = lambda round_index: None) -> None:
    """Run the peers to their end; `after_round` is called when all of them have completed a round."""
    peers.after_round = after_round
    peers.network.run()


def run(graph: Graph) -> Peers:
    """Run a graph to its end and return its peers."""
    peers = peers_of(graph)
    finish(peers)
    return peers
