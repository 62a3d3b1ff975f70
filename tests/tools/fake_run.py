"""A small finished run on disk, written with the writers of peers."""

import json
from pathlib import Path

import numpy as np

from coordinator_free_bootstrap.graph import Graph, Node
from coordinator_free_bootstrap.graph_file import save_graph
from coordinator_free_bootstrap.manifest import Manifest
from peer.core.schema import Schema, TensorSpec
from peer.store.files import write_json
from peer.store.history import HistoryWriter
from peer.store.model_file import save_model
from peer.store.state_dir import StateDir

SCHEMA = Schema((TensorSpec("weight", (2, 3)), TensorSpec("bias", (2,))))
ROUNDS = 6
FINAL = {0: 0.95, 1: 0.91, 2: 0.85, 3: 0.89}  # peer -> accuracy at the end
# An answer to an observer.
ACCURACY = {"name": "accuracy", "higher_is_better": True, "share": True}
STATUS = {
    "peer_id": 3,
    "incarnation": 1 << 32,
    "phase": "running",
    "stage": "exchanging",
    "round_index": 7,
    "rounds_total": 60,
    "persisted_round": 6,
    "neighbors": {"1": "alive", "2": "suspect"},
    "neighbor_rounds": {"1": 6, "2": 7},
    "silent_s": {"1": 0.1, "2": 3.2},
    "suspicion_s": 5.0,
    "waiting_for": [],
    "owed_to": [],
    "waiting_s": 0.0,
    "unchanged_s": 4.0,
    "metric": ACCURACY | {"value": 0.5},
    "cluster_index": 1,
    "totals": {"models_sent": 3},
    "refusals": {"too_slow": 1},
    "storage_error": "",
}
SECONDS = {"train": 0.4, "wait": 0.1, "fold": 0.02, "evaluate": 0.05, "other": 0.01}


def accuracy_at(peer_id: int, round_index: int) -> float:
    """Return an accuracy that rises from 0.25 to the final one."""
    return 0.25 + (FINAL[peer_id] - 0.25) * (1 - 0.5**round_index) / (1 - 0.5 ** (ROUNDS - 1))


def round_fields(peer_id: int, round_index: int) -> dict:
    neighbors = [(peer_id - 1) % 4, (peer_id + 1) % 4]
    return {
        "round_index": round_index,
        "cluster_index": 1 - peer_id % 2,
        "metric_value": accuracy_at(peer_id, round_index),
        "loss": 1.0 / (round_index + 1),
        "train_loss": 0.8 / (round_index + 1),
        "seconds": SECONDS,
        "models_sent": 2,
        "models_folded": 2,
        "folded": [[n, 1 << 32, round_index, 0, 0] for n in neighbors],
        "missing": [3] if (peer_id, round_index) == (2, 4) else [],
        "duplicates_dropped": 1 if round_index == 2 else 0,
        "stale_dropped": 0,
        "payload_bytes_sent": 64_000,
        "wire_bytes_sent": 65_000,
        "control_messages_sent": 5,
        "neighbors_alive": 2,
        "state": {"relay": round_index / 10, "name": "x", "losses": [1.0, 2.0]},
    }


def write_peer(directory: Path, peer_id: int, *, rounds: int = ROUNDS, end: bool = True) -> StateDir:
    place = StateDir.of_peer(directory, peer_id)
    place.create()
    with HistoryWriter(place.history, incarnation=(1 << 32) + peer_id) as history:
        history.write("start", peer_id=peer_id, resumed_from=None, true_cluster=peer_id % 2)
        for round_index in range(rounds):
            history.write("round", **round_fields(peer_id, round_index), t=0.6 * (round_index + 1))
        if end:
            history.write("end", rounds_completed=rounds, metric_value=FINAL[peer_id])
    if end:
        fields = ("cluster_index", "loss")
        last = {key: round_fields(peer_id, rounds - 1)[key] for key in fields}
        write_json(
            place.summary,
            {"peer_id": peer_id, "status": "completed", "metric": ACCURACY | {"value": FINAL[peer_id]}, **last},
        )
        for cluster_index in range(2):
            vector = np.arange(8, dtype=np.float32) + (peer_id if cluster_index == 1 else 0)
            save_model(place.cluster_model(cluster_index), vector, SCHEMA)
    return place


def write_graph(directory: Path) -> Graph:
    graph = Graph(
        nodes=tuple(Node(i, f"127.0.0.1:{7400 + i}") for i in range(4)),
        edges=((0, 1), (1, 2), (2, 3), (0, 3)),
        manifest=Manifest(rounds=ROUNDS, clusters=2),
    )
    save_graph(graph, directory / "graph.json")
    return graph


def strict(values: object) -> object:
    """Return values after a round trip through JSON without NaN, as `--json` prints them."""
    return json.loads(json.dumps(values, allow_nan=False))
