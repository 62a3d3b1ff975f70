"""The state of simulated peers on disk: an interrupted simulation leaves checkpoints, as real peers do, to continue from."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import UsageError
from peer.algorithms.predictor import Best
from peer.algorithms.registry import algorithm_named
from peer.bed.testbed.directory import is_simulated
from peer.core.checkpoint import Checkpoint
from peer.lab.network import SimulatedPeer
from peer.learning.learner import TorchLearner
from peer.runtime.results import write_best
from peer.runtime.saved_state import notes_of, saved_state, state_files
from peer.store.identity_files import IncarnationFile
from peer.store.state_dir import StateDir

log = logging.getLogger("peer")
RESUMING = "{directory}: resuming an interrupted run after {rounds} of {total} rounds"
LEFT = "{directory}: {ended} after {rounds} of {total} rounds; the same call or command {next}"
GOES_ON = "continues from there"
REMEDY = "Name another folder as out, or delete this one."
_CHECKPOINTS = "peer-*/checkpoints/checkpoint-*"


def has_checkpoints(directory: Path) -> bool:
    """Return whether peers of a run directory have left checkpoints."""
    return next(directory.glob(_CHECKPOINTS), None) is not None


def refuse_state_of_peers(directory: Path) -> None:
    """Raise UsageError if a simulation would delete the checkpoints of peers that are processes."""
    found = next(directory.glob(_CHECKPOINTS), None)
    if found is not None and not is_simulated(directory):
        raise UsageError(
            f"out {directory}: expected no checkpoints of peers that are processes, got {found.parent}, which a simulation "
            "would delete. Name another folder, or delete this one."
        )


class SavedPeers:
    """The state directories in a run directory.

    Attributes:
        resumes: whether an interrupted simulation has left checkpoints; `load` refuses those of another run.
    """

    def __init__(self, graph: Graph, directory: Path) -> None:
        self._graph, self._directory = graph, directory
        self.resumes = has_checkpoints(directory)

    def load(self, peer_id: int, learner: TorchLearner) -> tuple[int, Checkpoint | None]:
        """Return the incarnation of a peer, and the checkpoint that it resumes from.

        Raises:
            CheckpointCorrupt: it is of another run; the message names the keys.
            StorageError: it cannot be read.
        """
        if not self.resumes:
            return 1, None
        place = StateDir.of_peer(self._directory, peer_id)
        place.create()
        checkpoints, run = state_files(place, peer_id, self._graph, learner)
        algorithm = algorithm_named(self._graph.manifest.algorithm)(self._graph.manifest, peer_id, self._graph)
        saved = saved_state(place, checkpoints, run, algorithm, learner.schema, discard=False, remedy=REMEDY)
        run.write()
        above = int(saved.state["incarnation"]) if saved else 0
        incarnations = IncarnationFile(place.root)
        incarnation = incarnations.claim(0, above=above)
        for note in notes_of(checkpoints, run, incarnations):
            log.warning("peer %d: %s", peer_id, note)
        return incarnation, saved

    def save(self, peer: SimulatedPeer, learner: TorchLearner) -> None:
        """Write a peer's last checkpoint; the one it resumed from stays if there is none newer.

        Raises:
            StorageError: it cannot be written.
        """
        place = StateDir.of_peer(self._directory, peer.peer_id)
        checkpoints, run = state_files(place, peer.peer_id, self._graph, learner)
        if not self.resumes:
            IncarnationFile(place.root).claim(0)
        if peer.checkpoint is not None:
            run.write()
            checkpoints.save(peer.checkpoint.round_index, peer.checkpoint.arrays, peer.checkpoint.state)
            write_best(peer.host, place, Best.of(peer.checkpoint))

    def remove(self, peer: SimulatedPeer) -> None:
        """Delete the checkpoints of a completed run: the next simulation replaces it."""
        place = StateDir.of_peer(self._directory, peer.peer_id)
        shutil.rmtree(place.checkpoints, ignore_errors=True)
        place.create()
