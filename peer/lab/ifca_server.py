"""IFCA with a server: the upper bound in the papers' tables, for comparison only. No peer uses it.

Round: each client takes the cluster model with the lowest mean loss on its training set and trains it. The server averages,
per cluster, the models of the clients that chose this cluster. A cluster that no client chose keeps its model.
Source: Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated Learning", 2020 (arXiv 2006.04088),
Algorithm 1. The seeds are those of `dfca`: both start from the same k models and shuffle alike.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from coordinator_free_bootstrap import Graph, Manifest
from coordinator_free_bootstrap.errors import ConfigError
from peer.algorithms.learner import TrainStats, measured, training_fields
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector, accumulate
from peer.core.model_store import ModelStore
from peer.lab.network import SimulatedPeer
from peer.lab.server_keys import READ, refuse_unread
from peer.lab.simulated import OnRound, SimulatedSettings, clients_of_a_server, write_run
from peer.lab.together import Together

NAME = "ifca-server"  # in place of the algorithm's name, in the run directory


class IfcaServerOptions(BaseModel):
    """Options of a case with ``method = "ifca-server"``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    update: Literal["model_avg", "grad_avg"] = Field(
        "model_avg", description="average trained models; or one gradient each, divided by the number of all clients"
    )
    restarts: int = Field(
        1, ge=1, le=100, description="runs from other initial models; the run with the lowest training loss counts"
    )


def check_ifca_server(manifest: Manifest) -> None:
    """Check that IFCA with a server reads all settings.

    Raises:
        ConfigError: a key has no effect, or ``run.algorithm`` is another one.
    """
    if manifest.algorithm not in ("ifca", "dfca"):
        raise ConfigError(
            f"run.algorithm: expected 'ifca' or none with method = \"ifca-server\", got {manifest.algorithm!r}"
        )
    refuse_unread("ifca-server", manifest, READ - {"run.options", "run.optimizer_state"})


def run_ifca_server(
    graph: Graph,
    directory: Path | None,
    options: IfcaServerOptions | None = None,
    settings: SimulatedSettings | None = None,
    on_round: OnRound = lambda completed, metric: None,
) -> dict[int, SimulatedPeer]:
    """Run IFCA with the peers of a graph as clients and return them; edges are ignored.

    With restarts, the run with the lowest mean **training** loss at its end counts.

    Raises:
        ConfigError, TaskError, ShardError: the manifest, task or data cannot be used.
        StorageError: the run directory cannot be written.
    """
    check_ifca_server(graph.manifest)
    options, settings = options or IfcaServerOptions(), settings or SimulatedSettings()
    began = time.monotonic()
    runs = []
    for restart in range(options.restarts):
        manifest = graph.manifest.model_copy(
            update={"algorithm": "dfca", "options": {}, "seed": graph.manifest.seed + 7919 * restart}
        )
        server = _IfcaServer(replace(graph, manifest=manifest), options, settings)
        for round_index in range(manifest.rounds):
            value = server.round(round_index)
            on_round(restart * manifest.rounds + round_index + 1, value)
        runs.append(server)
    best = min(runs, key=lambda server: server.training_loss)
    if directory is not None:
        for client in best.clients.values():
            _close(client, best)
        named = replace(graph, manifest=graph.manifest.model_copy(update={"algorithm": NAME, "options": {}}))
        write_run(named, directory, best.clients, time.monotonic() - began, models=settings.models)
    return best.clients


class _IfcaServer:
    """k models, and the clients that train them."""

    def __init__(self, graph: Graph, options: IfcaServerOptions, settings: SimulatedSettings) -> None:
        self.clients = clients_of_a_server(graph, settings)
        self.manifest = graph.manifest
        self.options = options
        first = next(iter(self.clients.values()))
        store = first.host.workspace.models
        self.models: list[Vector] = [store.share(slot) for slot in range(len(store))]
        self.losses: dict[int, list[float]] = {}
        self._together = Together() if settings.stacked or settings.device.startswith("cuda") else None
        self._choose()

    @property
    def training_loss(self) -> float:
        """Mean over clients of the loss of their own cluster's model on their training sets."""
        return float(np.mean([min(losses) for losses in self.losses.values()]))

    def chosen(self, client_id: int) -> int:
        """Return the cluster of lowest training loss; ties go to the lowest index."""
        return int(np.argmin(self.losses[client_id]))

    def round(self, round_index: int) -> float | None:
        """Train, average and evaluate; return the mean of the metric, or None if this round is not evaluated."""
        workspaces = [client.host.workspace for client in self.clients.values()]
        for workspace in workspaces:
            workspace.round_index = round_index
        trained = self._train(workspaces)
        self._average([model for model, _ in trained])
        self._choose()
        every, last = self.manifest.evaluate_every, round_index + 1 == self.manifest.rounds
        evaluate = (round_index + 1) % every == 0 or last
        accuracies = []
        for client, (_, stats) in zip(self.clients.values(), trained, strict=True):
            client_id = client.peer_id
            fields: dict[str, Any] = {"round_index": round_index, **training_fields([stats])}
            fields |= {"learning_rate": client.host.workspace.learning_rate}
            fields |= {"cluster_index": self.chosen(client_id)}
            fields |= {
                "models_sent": 1,
                "payload_bytes_sent": client.host.state.model_bytes,
                "seconds": {},
                "active": True,
            }
            if evaluate:
                result = client.host.workspace.learner.evaluate(self.models[self.chosen(client_id)])
                fields |= measured(result)
                accuracies.append(result.metric)
            client.recording.add("round", fields)
            client.host.last_round = fields
        return float(np.mean(accuracies)) if accuracies else None

    def _choose(self) -> None:
        for client_id, client in self.clients.items():
            self.losses[client_id] = [client.host.workspace.learner.mean_loss(model) for model in self.models]

    def _train(self, workspaces: Sequence[Workspace]) -> list[tuple[Vector, TrainStats]]:
        one_gradient = self.options.update == "grad_avg"
        tasks = []
        for workspace in workspaces:
            slot = self.chosen(workspace.peer_id)
            tasks.append((workspace, partial(_fit, workspace, self.models[slot], slot, one_gradient)))
        if self._together is not None:
            return self._together.run(tasks)
        return [function() for _, function in tasks]

    def _average(self, trained: list[Vector]) -> None:
        """Average each cluster uniformly over the clients that chose it; or add all gradient steps, divided by N."""
        for slot, old in enumerate(self.models):
            mine = [
                model for client_id, model in zip(self.clients, trained, strict=True) if self.chosen(client_id) == slot
            ]
            if not mine:
                continue
            total = np.zeros_like(old)
            for model in mine:
                accumulate(total, model)
            if self.options.update == "grad_avg":  # theta - eta / N * sum of gradients
                accumulate(total, old, float(len(self.clients) - len(mine)))
                self.models[slot] = total / np.float32(len(self.clients))
            else:
                self.models[slot] = total / np.float32(len(mine))


def _fit(workspace: Workspace, model: Vector, slot: int, one_gradient: bool) -> tuple[Vector, TrainStats]:
    """Train as a peer of `dfca` does; a function, so that ``workspace.learner`` is read when it is called."""
    plan = workspace.slot_plan(slot)
    return workspace.fit(model, replace(plan, batch_size="all", epochs=1) if one_gradient else plan)


def _close(client: SimulatedPeer, server: _IfcaServer) -> None:
    """Set the results that a peer has when its run is complete."""
    slot = server.chosen(client.peer_id)
    client.status = "completed"
    client.host.state.round.enter(server.manifest.rounds, 0)
    client.host.state.algorithm_state = replace(client.host.state.algorithm_state, cluster_index=slot)
    client.host.workspace.models = ModelStore(list(server.models), spare_max=0)
    client.host.workspace.personalized = server.models[slot]
    client.recording.add("end", {"rounds_completed": server.manifest.rounds})
