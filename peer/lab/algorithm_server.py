"""Algorithms with a server, as their papers have them: for comparison and as upper bounds only. No peer uses it.

The clients are peers of the algorithm between neighbors: they choose, train and evaluate with the same code. Only what a server
does stands here.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Generic, cast

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypeVar, override

from coordinator_free_bootstrap import Graph, Manifest
from coordinator_free_bootstrap.errors import ConfigError, ConfigProblem
from coordinator_free_bootstrap.seeds import generator
from peer.algorithms import clustering
from peer.algorithms.base import Algorithm, StateT
from peer.algorithms.dfedavg import DFedAvg
from peer.algorithms.registry import algorithm_named
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector, accumulate, fold
from peer.lab.network import SimulatedPeer
from peer.lab.server_keys import READ, refuse_unread
from peer.lab.simulated import OnRound, SimulatedSettings, clients_of_a_server, write_run
from peer.zoo.algorithms import cluster_count
from peer.zoo.algorithms.apfl import Apfl
from peer.zoo.algorithms.cgpfl import Cgpfl
from peer.zoo.algorithms.cgpfl_decisions import CgpflState
from peer.zoo.algorithms.ditto import Ditto
from peer.zoo.algorithms.fedprox import FedProx
from peer.zoo.algorithms.fedrep import FedRep
from peer.zoo.algorithms.fedsoft import FedSoft, FedSoftState
from peer.zoo.algorithms.perfedavg import PerFedAvg
from peer.zoo.algorithms.personal import SHARED
from peer.zoo.algorithms.pfedme import PFedMe, PFedMeState


class AlgorithmServerOptions(BaseModel):
    """Options of a case with ``method = "server"``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    selected: int | None = Field(
        None, ge=1, description="fedsoft: clients drawn for each cluster in a round; default: all"
    )


AlgorithmT = TypeVar("AlgorithmT", bound=Algorithm[Any, Any], default=Algorithm)


class AlgorithmServer(Generic[AlgorithmT, StateT]):
    """The server of one algorithm, and its clients: the peers of a graph, whose edges are ignored."""

    unread: ClassVar[tuple[str, ...]] = ()  # options of the algorithm that have an effect between neighbors only
    read: ClassVar[frozenset[str]] = READ  # keys of run

    def __init__(self, graph: Graph, options: AlgorithmServerOptions, settings: SimulatedSettings) -> None:
        self.manifest, self.options = graph.manifest, options
        self.clients = clients_of_a_server(graph, settings)
        hosts = [client.host for client in self.clients.values()]
        self.workspaces = [cast("Workspace[StateT]", host.workspace) for host in hosts]
        self.algorithms = [cast("AlgorithmT", host.algorithm) for host in hosts]
        store = self.workspaces[0].models
        self.models: list[Vector] = [store.part.of(store.share(slot)) for slot in range(self.algorithms[0].slots)]

    def round(self, round_index: int) -> float | None:
        """Train, average and evaluate; return the mean of the metric, or None if this round is not evaluated."""
        for workspace in self.workspaces:
            workspace.round_index = round_index
        trained = self.train_and_average(round_index)
        every, last = self.manifest.evaluate_every, round_index + 1 == self.manifest.rounds
        evaluate, values = (round_index + 1) % every == 0 or last, []
        for place, client in enumerate(self.clients.values()):
            done = trained.get(place)
            fields: dict[str, Any] = {"round_index": round_index, "active": done is not None, "seconds": {}}
            fields |= {} if done is None else {**done, "models_sent": 1}
            fields |= {} if done is None else {"payload_bytes_sent": client.host.state.model_bytes}
            if (cluster := self.workspaces[place].state.cluster_index) is not None:
                fields["cluster_index"] = cluster
            if evaluate:
                fields |= self.algorithms[place].evaluate(self.workspaces[place])
                values.append(fields["metric_value"])
            client.recording.add("round", fields)
            client.host.last_round = fields
        return float(np.mean(values)) if values else None

    def train_and_average(self, round_index: int) -> dict[int, dict[str, Any]]:
        """Do a round; return the training fields of each client that trained, by its position."""
        raise NotImplementedError

    def train(self, place: int) -> dict[str, Any]:
        """Train one client as a peer trains."""
        workspace = self.workspaces[place]
        fields: dict[str, Any] = self.algorithms[place].train(workspace)
        return {"learning_rate": workspace.learning_rate, **fields}

    def send(self, slots: range) -> None:
        """Give the clients the server's models; private tensors stay."""
        for workspace in self.workspaces:
            for slot in slots:
                workspace.models.replace_part(slot, self.models[slot].copy())

    def average(self, weights: np.ndarray[Any, np.dtype[np.float64]], slot: int) -> Vector:
        """Return the weighted sum of what travels of the clients' models of a slot; a client of weight 0 takes no part."""
        total = np.zeros_like(self.models[slot])
        for workspace, weight in zip(self.workspaces, weights, strict=True):
            if weight > 0:
                accumulate(total, workspace.models.part.of(workspace.models.model(slot)), float(weight))
        return total


def moved(old: Vector, mean: Vector, share: float) -> Vector:
    """Return (1 - share) old + share mean; with share 1 it is the mean, bit for bit."""
    if share == 1:
        return mean
    mixed = old.copy()
    fold(mixed, 1 - share, mean, share)
    return mixed


class FedSoftServer(AlgorithmServer[FedSoft, FedSoftState]):
    """FedSoft (arXiv 2112.06053), Algorithm 1: with ``selected``, each center is the mean of that many clients, drawn by v_s.

    Without it, all clients train, and c_s = sum_k v_sk w_k with v_sk = u_sk n_k / sum_k' u_sk' n_k'. Never both: weighted drawing
    and weighted averaging would count the importance twice.
    """

    unread = ("variant", "rate", "initialization")

    @override
    def train_and_average(self, round_index: int) -> dict[int, dict[str, Any]]:
        """Divide the samples where it is due, train the clients of the round, and average each center."""
        clusters, wanted = range(self.algorithms[0].clusters), self.options.selected
        self.send(range(len(clusters)))
        for algorithm, workspace in zip(self.algorithms, self.workspaces, strict=True):
            workspace.state = algorithm.assign(workspace)
        weights = np.array([[u * w.learner.count() for u in w.state.importance] for w in self.workspaces]).T
        weights /= weights.sum(axis=1, keepdims=True)  # v [S, clients]
        if wanted is not None:
            draw = generator(self.manifest.seed, "fedsoft-server", round_index)
            wanted = min(wanted, len(self.workspaces))
            chosen = [draw.choice(len(v), wanted, replace=False, p=v) for v in weights]
            weights = np.array([np.isin(np.arange(weights.shape[1]), places) / len(places) for places in chosen])
        trained = {int(place): self.train(int(place)) for place in np.flatnonzero(weights.sum(axis=0))}
        own = self.algorithms[0].own
        self.models[: len(clusters)] = [self.average(v, own) for v in weights]
        self.send(range(len(clusters)))
        return trained


class MeanServer(AlgorithmServer[AlgorithmT, StateT]):
    """Federated averaging: w <- sum_i (n_i / n) w_i over all clients, where w is the one model of each that travels.

    With private tensors, w is the rest of the model. FedAvg: McMahan et al., 2017, arXiv 1602.05629, Algorithm 1. The weights
    n_i are those of FedAvg for every algorithm: a choice of this project where a paper weighs all clients the same.
    """

    unread = ("partners",)  # of dfedavg
    read = READ | {"run.private_parameters"}

    @override
    def train_and_average(self, round_index: int) -> dict[int, dict[str, Any]]:
        """Train all clients, and give them the average of their w by the number of their samples."""
        trained = {place: self.train(place) for place in range(len(self.workspaces))}
        counts = np.array([workspace.learner.count() for workspace in self.workspaces])
        self.models[SHARED] = moved(self.models[SHARED], self.average(counts / counts.sum(), SHARED), self.share)
        self.send(range(1))
        return trained

    @property
    def share(self) -> float:
        """The share of the average in the next w."""
        return 1.0


class PFedMeServer(MeanServer[PFedMe, PFedMeState]):
    """pFedMe (arXiv 2006.08848), Algorithm 1: w <- (1 - beta) w + beta sum_i (n_i / n) w_i; all clients take part."""

    @property
    @override
    def share(self) -> float:
        """The option beta."""
        return self.algorithms[0].options.beta


class CgpflServer(AlgorithmServer[Cgpfl, CgpflState]):
    """CGPFL (arXiv 2106.13044), Algorithm 1: k-means on all w, then center <- (1 - alpha) center + alpha mean of its w.

    Round 0 starts k-means with k-means++, later rounds start it from the last centers, so that labels persist. With
    ``clusters = "auto"`` (CGPFL-Heur), K is chosen in round 0 from 1 to half of the clients and kept.
    """

    unread = ("align_every", "sketch_size")
    count: int | None = None

    @override
    def train_and_average(self, round_index: int) -> dict[int, dict[str, Any]]:
        """Train all clients from the centers of their labels, cluster their w, and move the centers."""
        trained = {place: self.train(place) for place in range(len(self.workspaces))}
        algorithm = self.algorithms[0]
        uploaded = [workspace.models.model(algorithm.own) for workspace in self.workspaces]
        labels = self._labels(uploaded, round_index)
        for k in sorted(set(labels)):
            members = np.array([label == k for label in labels])
            mean = self.average(members / members.sum(), algorithm.own)
            self.models[k] = moved(self.models[k], mean, algorithm.options.alpha)
        self.send(range(algorithm.clusters))
        for workspace, label in zip(self.workspaces, labels, strict=True):
            workspace.state = replace(workspace.state, label=label, cluster_index=label, clusters=self.count)
        return trained

    @override
    def train(self, place: int) -> dict[str, Any]:
        """Train one client from the center of its label; as in round 0 of a peer, the server gives the label."""
        workspace, algorithm = self.workspaces[place], self.algorithms[place]
        workspace.state = replace(workspace.state, trained=(algorithm.own,))
        return super().train(place)

    def _labels(self, uploaded: list[Vector], round_index: int) -> list[int]:
        """Return the label of each client."""
        algorithm = self.algorithms[0]
        reference = self.models[0]
        seed, smallest = self.manifest.seed, min(self.clients)
        if round_index > 0:
            assert self.count is not None
            points = clustering.coordinates([*uploaded, *self.models[: self.count]], reference)
            labels = clustering.lloyd(points[: len(uploaded)], points[len(uploaded) :])
            return [int(label) for label in labels]
        points = clustering.coordinates(uploaded, reference)
        self.count = algorithm.clusters
        if algorithm.auto:
            most = max(1, min(algorithm.clusters, len(uploaded) // 2))
            weights = np.array([float(workspace.learner.count()) for workspace in self.workspaces])
            ratios = cluster_count.relative_costs(points, most, generator(seed, "costs", smallest), weights)
            curve = cluster_count.curve_of(ratios, most)
            self.count = cluster_count.best_count(curve, most, algorithm.options.mu_scale)
        return [int(k) for k in clustering.k_means(points, self.count, generator(seed, "k-means", smallest))]


SERVERS: dict[str, type[AlgorithmServer[Any, Any]]] = {
    **{each.name: MeanServer for each in (DFedAvg, FedProx, Ditto, Apfl, FedRep, PerFedAvg)},
    FedSoft.name: FedSoftServer,
    PFedMe.name: PFedMeServer,
    Cgpfl.name: CgpflServer,
}


def check_server(manifest: Manifest, options: AlgorithmServerOptions) -> None:
    """Check that an algorithm has a server form, and that the form reads all settings.

    Raises:
        ConfigError: it has none, or a key or option has no effect.
    """
    algorithm = manifest.algorithm
    if algorithm not in SERVERS:
        raise ConfigError(
            f'run.algorithm: expected one of {", ".join(sorted(SERVERS))}, got {algorithm!r} with method = "server"'
        )
    if options.selected is not None and algorithm != FedSoft.name:
        why = f"algorithm {algorithm} has no such server; fedsoft has"
        raise ConfigError(ConfigProblem.without_effect("server.selected", options.selected, why))
    refuse_unread("server", manifest, SERVERS[algorithm].read)
    its_options, unread = algorithm_named(algorithm).parse_options(manifest), SERVERS[algorithm].unread
    read = {f"run.options.{name}" for name in type(its_options).model_fields if name not in unread}
    refuse_unread("server", its_options, read, "run.options")


def run_algorithm_server(
    graph: Graph,
    directory: Path | None,
    options: AlgorithmServerOptions | None = None,
    settings: SimulatedSettings | None = None,
    on_round: OnRound = lambda completed, metric: None,
) -> dict[int, SimulatedPeer]:
    """Run the server form of the manifest's algorithm with the peers of a graph as clients, and return them.

    Raises:
        ConfigError, TaskError, ShardError: the manifest, task or data cannot be used, or the algorithm has no server form.
        StorageError: the run directory cannot be written.
    """
    options, settings, manifest = options or AlgorithmServerOptions(), settings or SimulatedSettings(), graph.manifest
    check_server(manifest, options)
    began = time.monotonic()
    server = SERVERS[manifest.algorithm](graph, options, settings)
    for round_index in range(manifest.rounds):
        on_round(round_index + 1, server.round(round_index))
    for algorithm, workspace, client in zip(server.algorithms, server.workspaces, server.clients.values(), strict=True):
        _close(algorithm, workspace, client, manifest.rounds)
    if directory is not None:
        named = replace(
            graph, manifest=manifest.model_copy(update={"algorithm": f"{manifest.algorithm}-server", "options": {}})
        )
        write_run(named, directory, server.clients, time.monotonic() - began, models=settings.models)
    return server.clients


def _close(algorithm: Algorithm, workspace: Workspace, client: SimulatedPeer, rounds: int) -> None:
    """Set the results that a peer has when its run is complete."""
    client.status = "completed"
    client.host.state.round.enter(rounds, 0)
    workspace.round_index = rounds
    client.host.state.algorithm_state = workspace.state
    workspace.personalized, metrics = algorithm.final(workspace)
    client.host.last_round = client.host.last_round | metrics
    client.recording.add("end", {"rounds_completed": rounds} | metrics)
