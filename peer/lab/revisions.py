"""A simulated run under several graph files: all peers change to the next one in its ``from_round``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import ConfigProblem, UsageError
from coordinator_free_bootstrap.revision import require_next
from peer.core import events as ev
from peer.core.checkpoint import Checkpoint
from peer.lab.network import SimulatedPeer, VirtualNetwork
from peer.learning.learner import TorchLearner


class ChangedPeers:
    """What peers carry over to the next graph file."""

    def __init__(self, before: dict[int, SimulatedPeer]) -> None:
        self._before = before

    def load(self, peer_id: int, learner: TorchLearner) -> tuple[int, Checkpoint | None]:
        """Return the incarnation of a peer, and the checkpoint that it goes on from; None for a new peer."""
        before = self._before.get(peer_id)
        return (1, None) if before is None else (before.host.state.incarnation + 1, before.checkpoint)


def require_revisions(graph: Graph, revisions: Sequence[Graph]) -> None:
    """Check that each graph continues the one before, and that the rounds of the changes ascend.

    Raises:
        UsageError: a change has no round, or one that is over.
        GraphError: a graph does not continue the one before.
    """
    least = 1
    for each in revisions:
        require_next(graph, each)
        if each.from_round < least:
            fix = "Give it with peer graph next --from-round."
            raise UsageError(ConfigProblem("revisions: from_round", f"{least} or more", str(each.from_round), fix))
        graph, least = each, each.from_round + 1


def run_revisions(
    graph: Graph,
    revisions: Sequence[Graph],
    network_of: Callable[[], VirtualNetwork],
    peers_of: Callable[[Graph, VirtualNetwork, ChangedPeers | None], dict[int, SimulatedPeer]],
) -> dict[int, SimulatedPeer]:
    """Run all peers under one graph file after the other; return those of the last one, with their whole history.

    Args:
        graph: the first one.
        revisions: those after it, as `require_revisions` wants them.
        network_of: makes a network that keeps checkpoints.
        peers_of: connects the peers of a graph to a network, in the state that is carried over.
    """
    carried: ChangedPeers | None = None
    before: dict[int, SimulatedPeer] = {}
    for present, following in zip((graph, *revisions), (*revisions, None), strict=True):
        network = network_of()
        peers = peers_of(present, network, carried)
        for peer_id, peer in peers.items():
            if peer_id in before:
                peer.recording.lines[:0] = before[peer_id].recording.lines
            if following is not None:
                removed = peer_id not in following
                network.later(peer.host.post, ev.ChangeRequested(following.from_round, removed=removed))
        network.run()
        carried, before = ChangedPeers(peers), peers
    return before
