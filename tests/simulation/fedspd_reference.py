"""The single-process reference of FedSPD: what a fault-free lockstep run must give, bit for bit.

As `tests.oracle.reference`, whose averages it uses: no engine, no messages, no announcements; everybody's selection is simply
there. Sketches and their matching are the project's own (their oracle is `tests/unit/algorithms/test_labels.py`). Not here:
``split = updates``, ``min_cluster_samples``, privacy. Section numbers are those of the specification.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.schedule import is_active
from coordinator_free_bootstrap.seeds import derive_seed, generator, uniform
from peer.algorithms import labels, sketches
from peer.algorithms.learner import TrainingPlan
from peer.core.averaging import Vector
from peer.core.constants import DEFAULTS
from tests.oracle.reference import Reference, ReferencePeer


@dataclass
class SelectingPeer(ReferencePeer):
    """One peer's centers, and what it thinks of its samples."""

    labels: Any = None  # z, one for each sample
    selected: int | None = None  # in this round
    selected_at: list[int] = field(default_factory=list)
    anchor: tuple[int, int] = (0, 0)
    sketches: Any = None
    centers: list[Vector] = field(default_factory=list)  # at the start of the round


def run_fedspd(graph: Graph, learners: Mapping[int, Any]) -> dict[int, ReferencePeer]:
    """Return every peer after the last round."""
    return FedSpdReference(graph, learners).run()


class FedSpdReference(Reference):
    """The loop of section 2.3."""

    def __init__(self, graph: Graph, learners: Mapping[int, Any]) -> None:
        self.graph, self.manifest = graph, graph.manifest
        self.clusters, self.batch = self.manifest.clusters, self.manifest.aggregation == "batch"
        self.mix = self.manifest.mix or "uniform"
        self.warm, self.hard = self.option("warm_rounds", 0), self.option("hard_rounds", 0)
        self.peers: dict[int, SelectingPeer] = {i: self.newcomer(i, learners[i]) for i in graph.ids}  # type: ignore[assignment]

    def newcomer(self, i: int, learner: Any) -> SelectingPeer:
        """2.4: common centers and random labels; all of one label until a warm model is split."""
        peer = SelectingPeer(i, learner, self.initial_models(i, learner), anchor=(i, 0))
        draw = generator(self.manifest.seed, "first_labels", i)
        peer.labels = np.zeros(learner.count(), int) if self.warm else draw.integers(0, self.clusters, learner.count())
        peer.selected_at = [-1] * self.clusters
        return peer

    def run(self) -> dict[int, ReferencePeer]:
        """All rounds."""
        for t in range(self.manifest.rounds):
            for peer in self.peers.values():
                self.select(peer, t)
                self.train(peer, t)
            self.exchange(t)
            announced = {i: (p.anchor, p.sketches) for i, p in self.peers.items() if p.sketches is not None}
            for peer in self.peers.values():
                if t + 1 == self.warm:
                    self.split(peer)
                if t + 1 >= self.warm:
                    losses = [peer.learner.sample_losses(center) for center in peer.models]
                    peer.labels = np.argmin(losses, axis=0)
                if peer.sketches is not None:
                    self.align(peer, {n: announced[n] for n in self.around(peer.peer_id, t) if n in announced})
        return self.peers  # type: ignore[return-value]

    # ---- before the exchange ----------------------------------------------------------------------------------------

    def everything(self, t: int) -> bool:
        """Whether nothing is selected in a round: one warm model, or all centers, go to everybody."""
        return t < self.warm or (
            t == 0 and self.hard == 0 and self.option("first_round", "all_clusters") == "all_clusters"
        )

    def select(self, peer: SelectingPeer, t: int) -> None:
        """Step 1."""
        peer.centers, peer.sketches = [m.copy() for m in peer.models], None
        peer.selected, peer.trained = None, []
        if self.manifest.participation < 1 and not is_active(
            self.manifest.seed, t, peer.peer_id, self.manifest.participation
        ):
            return
        peer.trained = [0] if t < self.warm else list(range(self.clusters))
        if not self.everything(t):
            peer.selected = self.hardest(peer) if t < self.warm + self.hard else self.drawn(peer, t)
            peer.trained = [peer.selected]
        for slot in peer.trained:
            peer.selected_at[slot] = t
        every = self.option("align_every", 10)
        if (
            every
            and self.clusters > 1
            and peer.selected is not None
            and t >= self.warm + self.hard
            and t % every == 1 % every
        ):
            size, seed = self.option("sketch_size", 256), self.manifest.seed
            peer.sketches = sketches.sketch(peer.centers, self.origin(peer), size, seed)

    def hardest(self, peer: SelectingPeer) -> int:
        """A hard round: the center of lowest loss on all samples."""
        return int(np.argmin([peer.learner.mean_loss(center) for center in peer.models]))

    def drawn(self, peer: SelectingPeer, t: int) -> int:
        """s_i ~ Categorical(max(u_i, u_min)), from the seed, the round and the peer."""
        weights = [max((peer.labels == s).mean(), self.option("u_min", 0.0)) for s in range(self.clusters)]
        left = uniform(self.manifest.seed, "select", t, peer.peer_id) * sum(weights)
        for slot, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return slot
        raise AssertionError("the weights do not sum up")

    def train(self, peer: SelectingPeer, t: int) -> None:
        """Step 2, on the samples of the center alone; longer in the first round."""
        m = self.manifest
        for slot in peer.trained:
            mine = None if t < self.warm + self.hard else np.flatnonzero(peer.labels == slot)
            if mine is None or len(mine):
                peer.models[slot], _ = peer.learner.train(
                    peer.models[slot],
                    TrainingPlan(
                        epochs=m.local_epochs * (2 if t == 0 else 1),
                        seed=derive_seed(m.seed, "train", peer.peer_id, t, slot),
                        learning_rate=m.learning_rate,
                        indices=mine,
                    ),
                )

    # ---- the exchange -------------------------------------------------------------------------------------------------

    def exchange(self, t: int) -> None:
        """Steps 4 and 5: co-selectors' centers, as they were after training, one neighbor after another."""
        sent = {i: {slot: p.models[slot].copy() for slot in p.trained} for i, p in self.peers.items()}
        for i, peer in self.peers.items():
            arrivals: dict[int, list[tuple[Vector, float]]] = {slot: [] for slot in range(self.clusters)}
            for n in self.around(i, t):
                for slot, theta in sent[n].items():
                    wanted = self.everything(t) or self.wants(peer, slot, t)
                    if wanted and not self.is_of_another(peer, slot, theta, t):
                        arrivals[slot].append((theta, self.weight(i, n, t)))
            for slot, found in arrivals.items():
                if found:
                    self.average(peer, slot, found)

    def wants(self, peer: SelectingPeer, slot: int, t: int) -> bool:
        """A selected center moves; when all hear everything, one selected within the staleness limit moves too."""
        if peer.selected == slot:
            return True
        m = self.manifest
        heard = self.option("exchange", "same_cluster") == "broadcast" and m.rho > 0
        return heard and peer.selected_at[slot] >= t - DEFAULTS.stale_rounds

    def weight(self, i: int, n: int, t: int) -> float:
        """1, or Metropolis in the graph of those that selected the same."""
        if self.mix == "uniform":
            return 1.0
        if self.everything(t):
            return self.metropolis(i, n)
        return 1.0 / (1 + max(self.co_selecting(i, t), 1, self.co_selecting(n, t)))

    def co_selecting(self, i: int, t: int) -> int:
        """The degree of a peer among those that selected the same."""
        return sum(self.peers[n].selected == self.peers[i].selected is not None for n in self.around(i, t))

    def is_of_another(self, peer: SelectingPeer, tag: int, theta: Vector, t: int) -> bool:
        """2.6, layer 1: clearly more along another center than along that of its tag."""
        if not self.option("label_check", True) or self.clusters == 1 or t < self.warm:
            return False
        origin = self.origin(peer)
        origin = np.zeros_like(theta) if origin is None else origin
        arrows = [(center - origin).astype(float) for center in peer.centers]
        own = (theta - origin).astype(float)
        scale = [np.linalg.norm(own) * np.linalg.norm(arrow) for arrow in arrows]
        cosines = [own @ arrow / size if size else 0.0 for arrow, size in zip(arrows, scale, strict=True)]
        return bool(max(cosines) - cosines[tag] > self.option("label_margin", 0.1))

    def origin(self, peer: SelectingPeer) -> Vector | None:
        """theta_ref: the mean of the common first models, where they are common."""
        if self.option("initialization", "global") == "local":
            return None
        models = self.initial_models(peer.peer_id, peer.learner)
        mean = models[0] * np.float32(1 / self.clusters)
        for model in models[1:]:
            mean = mean + model * np.float32(1 / self.clusters)
        return mean

    # ---- after the exchange ---------------------------------------------------------------------------------------------

    def split(self, peer: SelectingPeer) -> None:
        """The warm model, pushed a little into S directions that are the same at every peer."""
        warm = peer.models[0]
        scale = np.float32(0.01 * np.linalg.norm(warm) / np.sqrt(warm.size))
        for slot in range(self.clusters):
            noise = generator(self.manifest.seed, "split", slot).standard_normal(warm.size, np.float32)
            peer.models[slot] = warm + scale * noise

    def align(self, peer: SelectingPeer, announced: dict[int, tuple[tuple[int, int], Any]]) -> None:
        """2.6, layer 2: take over the labels of the neighbor that knows the smallest anchor, over the fewest edges."""
        if not announced:
            return
        parent = min(announced, key=lambda n: (announced[n][0], n))
        (anchor, hops), theirs = announced[parent]
        if (anchor, hops + 1) > peer.anchor:
            return
        peer.anchor = (anchor, hops + 1)
        order = labels.matching(peer.sketches, theirs)
        peer.models = [peer.models[old] for old in order]
        peer.selected_at = [peer.selected_at[old] for old in order]
        peer.labels = np.array([order.index(z) for z in peer.labels])
