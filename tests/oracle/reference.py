"""Single-process reference: the exact result, bit for bit, of a fault-free lockstep run (algorithms dfca, dfedavg, local).

One loop over peers and rounds: no engine, no messages, no model store. It uses the given learner and the arithmetic of
`peer.core.averaging`, in the runtime's order (docs/architecture.md): arrivals in the order of neighbor ids. Arrivals for a slot
that the peer trains are collected in a second average, whose first arrival is copied, and merged with the trained model at the
end of the round. Arrivals for other slots are folded in place. With private parameters whole models are averaged all the same,
and each peer then puts its own values back.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.learning_rates import schedule_of
from coordinator_free_bootstrap.schedule import edge_is_up, is_active
from coordinator_free_bootstrap.seeds import derive_seed, generator
from peer.algorithms.learner import TrainingPlan
from peer.core.averaging import Vector, accumulate, fold
from tests.oracle import one_edge


@dataclass
class ReferencePeer:
    """One peer: its models, its cluster and its trained slots."""

    peer_id: int
    learner: Any
    models: list[Vector]
    cluster: int | None = None  # with the lowest loss; None: not assigned yet, or an algorithm without clusters
    trained: list[int] = field(default_factory=list)
    starts: list[Vector] = field(default_factory=list)  # the models at the start of the round
    changed: set[int] = field(default_factory=set)  # slots trained or averaged in the round
    momentum: dict[int, Vector] = field(default_factory=dict)  # of the outer step, by slot


def run_reference(
    graph: Graph, learners: Mapping[int, Any], following: Graph | None = None
) -> dict[int, ReferencePeer]:
    """Return every peer after the last round of the graph's run (algorithms dfca, dfedavg, local).

    Args:
        graph: with its manifest.
        learners: per peer id, anything with the methods of `peer.algorithms.learner.Learner`.
        following: the next graph file, with which all peers change in its ``from_round``; without new peers.
    """
    return Reference(graph, learners).run(following)


def collect(arrivals: list[tuple[Vector, float]], batch: bool) -> tuple[Vector, float]:
    """Return the second average of arrivals and their weights (batch: the weighted sum), and the sum of the weights."""
    theta, total = arrivals[0]
    if batch:
        aside = theta * np.float32(total)
        for other, weight in arrivals[1:]:
            accumulate(aside, other, weight)
            total += weight
        return aside, total
    aside = theta.copy()
    for other, weight in arrivals[1:]:
        total = fold(aside, total, other, weight)
    return aside, total


def merge(own: Vector, aside: Vector, own_weight: float, weight: float, batch: bool) -> None:
    """Write the average of a model and of its collected arrivals into ``own``."""
    if batch:
        if own_weight > 0:
            accumulate(aside, own, own_weight)
        np.divide(aside, np.float32(own_weight + weight), out=own)
    elif own_weight > 0:
        fold(own, own_weight, aside, weight)
    else:
        own[:] = aside


class Reference:
    """The loop over rounds; a subclass adds an algorithm."""

    def __init__(self, graph: Graph, learners: Mapping[int, Any]) -> None:
        self.graph = graph
        self.manifest = graph.manifest
        self.clusters = self.manifest.clusters if self.manifest.algorithm == "dfca" else 1
        plain = self.manifest.algorithm == "dfedavg" and not self.option("partners", 0)
        default = "metropolis" if plain else "uniform"
        self.mix = self.manifest.mix or default
        self.batch = self.manifest.aggregation == "batch"
        self.peers = {i: ReferencePeer(i, learners[i], self.initial_models(i, learners[i])) for i in graph.ids}

    def run(self, following: Graph | None = None) -> dict[int, ReferencePeer]:
        """Run all rounds and return the peers."""
        for t in range(self.manifest.rounds):
            if following is not None and t == following.from_round:
                self.graph, self.manifest = following, following.manifest
                self.peers = {i: self.peers[i] for i in following.ids}
            for peer in self.peers.values():
                peer.starts = [theta.copy() for theta in peer.models]
                self.assign_and_train(peer, t)
                peer.changed = {*peer.trained}
            if self.manifest.algorithm == "local":
                continue
            if t < self.option("warmup_rounds", 0):
                self.relay(t)
            else:
                self.exchange(t)
                for peer in self.peers.values():
                    self.step_out(peer)
            for peer in self.peers.values():
                if self.manifest.algorithm == "dfca":
                    peer.cluster = self.nearest(peer)
        return self.peers

    def option(self, name: str, default: Any) -> Any:
        """Return an option of the algorithm."""
        return self.manifest.options.get(name, default)

    def private(self, peer: ReferencePeer) -> np.ndarray:
        """Return which values of a model never leave a peer, bool [d]."""
        mask = [
            np.full(spec.size, any(fnmatch.fnmatchcase(spec.name, each) for each in self.manifest.private_parameters))
            for spec in peer.learner.schema.tensors
        ]
        return np.concatenate(mask)

    def initial_models(self, i: int, learner: Any) -> list[Vector]:
        """Initial models: equal at all peers (DFCA-GI), or drawn by each peer with ``initialization = "local"`` (DFCA-LI)."""
        path = (i,) if self.option("initialization", "global") == "local" else ()
        seeds = [derive_seed(self.manifest.seed, "initial", slot, *path) for slot in range(self.clusters)]
        return [learner.initial_model(seed) for seed in seeds]

    def nearest(self, peer: ReferencePeer) -> int:
        """Cluster with the lowest loss (DFCA, Eq. 4)."""
        return int(np.argmin([peer.learner.mean_loss(theta) for theta in peer.models]))

    def assign_and_train(self, peer: ReferencePeer, t: int) -> None:
        """Choose the slot and train it; an inactive peer does neither."""
        m, peer.trained = self.manifest, []
        if m.participation < 1 and not is_active(m.seed, t, peer.peer_id, m.participation):
            return
        slot = 0
        if m.algorithm == "dfca":
            peer.cluster = self.nearest(peer) if peer.cluster is None else peer.cluster
            slot = peer.cluster
        peer.models[slot], _ = peer.learner.train(
            peer.models[slot],
            TrainingPlan(
                epochs=m.local_epochs,
                seed=derive_seed(m.seed, "train", peer.peer_id, t, slot),
                learning_rate=m.learning_rate * schedule_of(m.learning_rate_schedule).share(t, m.rounds),
                momentum=m.momentum,
                weight_decay=m.weight_decay,
                optimizer=m.optimizer,
                unit=m.local_unit,
                batch_size=m.step_samples,
            ),
        )
        peer.trained = [slot]

    def around(self, i: int, t: int) -> list[int]:
        """Return the neighbors whose edge is up in a round, ascending."""
        m = self.manifest
        around = [n for n in self.graph.neighbors(i) if m.edges == "all" or one_edge.is_up(self.graph, t, i, n)]
        return [n for n in around if not m.dynamic_edges or edge_is_up(m.seed, t, i, n, m.dynamic_edges)]

    def asked(self, peer: ReferencePeer, t: int) -> list[int]:
        """Return the neighbors whose models a peer takes in a round: all around it, or its partners if it takes part."""
        i, partners = peer.peer_id, self.option("partners", 0)
        if not partners:
            return self.around(i, t)
        neighbors = self.graph.neighbors(i)
        draw = generator(self.manifest.seed, "partners", i, t)
        chosen = {neighbors[k] for k in draw.choice(len(neighbors), min(partners, len(neighbors)), replace=False)}
        return [n for n in self.around(i, t) if n in chosen and peer.trained]

    def metropolis(self, i: int, n: int) -> float:
        """Return the Metropolis weight of an edge of the graph file; a half where a round has one edge."""
        if self.manifest.edges == "one":
            return 0.5
        return 1.0 / (1 + max(self.graph.degree(i), self.graph.degree(n)))

    def exchange(self, t: int) -> None:
        """One exchange of the trained slots; all snapshots are taken before the first fold."""
        offered = {i: [(slot, peer.models[slot].copy()) for slot in peer.trained] for i, peer in self.peers.items()}
        for i, peer in self.peers.items():
            if not peer.trained and not self.option("idle_folds", True):
                continue
            arrivals: dict[int, list[tuple[Vector, float]]] = {slot: [] for slot in range(self.clusters)}
            for n in self.asked(peer, t):
                for slot, theta in offered[n]:
                    arrivals[slot].append((theta, 1.0 if self.mix == "uniform" else self.metropolis(i, n)))
            for slot, found in arrivals.items():
                if found:
                    self.average(peer, slot, found)

    def step_out(self, peer: ReferencePeer) -> None:
        """Go on from the start of the round by Nesterov's momentum, or by NoLoCo's; private values are those of the training."""
        outer = self.manifest.outer
        if outer.optimizer is None:
            return
        rate, share = np.float32(outer.learning_rate), np.float32(outer.momentum)
        for slot in sorted(peer.changed):
            start, average = peer.starts[slot], peer.models[slot]
            before = peer.momentum.get(slot, np.zeros_like(start))
            if outer.optimizer == "nesterov":
                after = share * before + (average - start)
                stepped = start + rate * (share * after + (average - start))
            else:
                after = share * before + rate * (average - start)
                stepped = start + after
            mine = self.private(peer)
            peer.models[slot] = np.where(mine, average, stepped)
            peer.momentum[slot] = np.where(mine, np.float32(0), after)

    def average(self, peer: ReferencePeer, slot: int, arrivals: list[tuple[Vector, float]]) -> None:
        """Average a slot with its arrivals."""
        peer.changed.add(slot)
        own, total = peer.models[slot].copy(), 0.0
        if self.mix == "uniform" and slot not in peer.trained and not self.batch:
            total = 1.0
            for theta, weight in arrivals:
                total = fold(own, total, theta, weight)
        else:
            aside, total = collect(arrivals, self.batch)
            merge(own, aside, 1.0 if self.mix == "uniform" else max(0.0, 1.0 - total), total, self.batch)
        peer.models[slot] = np.where(self.private(peer), peer.models[slot], own)

    def relay(self, t: int) -> None:
        """Relay warm-up of DFCA: mixing steps of the models of every cluster, each weighted by its mass."""
        masses = {i: [float(slot in p.trained) for slot in range(self.clusters)] for i, p in self.peers.items()}
        for _ in range(self.option("relay_steps", 3)):
            sent = {
                i: [theta.copy() if mass > 0 else None for theta, mass in zip(p.models, masses[i], strict=True)]
                for i, p in self.peers.items()
            }
            mixed = {i: self.relay_step(peer, t, sent, masses) for i, peer in self.peers.items()}
            masses = mixed

    def relay_step(
        self,
        peer: ReferencePeer,
        t: int,
        sent: dict[int, list[Vector | None]],
        masses: dict[int, list[float]],
    ) -> list[float]:
        """Mix one peer's models in place and return its new masses."""
        i, neighbors = peer.peer_id, self.around(peer.peer_id, t)
        own_share = 1.0 - sum(self.metropolis(i, n) for n in neighbors)
        result = []
        for slot in range(self.clusters):
            arrivals = [
                (theta, self.metropolis(i, n) * masses[n][slot])
                for n in neighbors
                if (theta := sent[n][slot]) is not None
            ]
            own, weight = own_share * masses[i][slot], 0.0
            if arrivals:
                aside, weight = collect(arrivals, self.batch)
                mixed = peer.models[slot].copy()
                merge(mixed, aside, own, weight, self.batch)
                peer.models[slot] = np.where(self.private(peer), peer.models[slot], mixed)
            result.append(own + weight)
        return result
