"""FedSPD and FedEM as real processes over loopback: the same bits as the simulated backend, at both paces, with bytes counted.

Method: forked peers of a testbed run a small graph to its end; their models are compared with those of the simulated backend,
which has no wire and no processes. The independent check of the arithmetic is tests/oracle/fedspd.py.
"""

from pathlib import Path

import numpy as np
import pytest

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from peer.store.model_file import load_model
from peer.view.models.saved import SavedModel
from peer.view.report.report import build_report
from tests.tools.simulated import run

pytestmark = pytest.mark.process

SOFT = {"samples_per_peer": 60, "test_per_peer": 30}
LONG = {"suspicion_s": 60.0}  # a peer marked dead by mistake would change the bits
BASE = dict(
    task="digits",
    model="mlp",
    model_options={"hidden": 16},
    split="rotated_soft",
    split_options=SOFT,
    rounds=4,
    timeouts=LONG,
)


def graph_of(peers: int, kind: str = "ring", **manifest) -> Graph:
    made = make_graph(kind, peers, seed=3)
    return Graph(made.nodes, made.edges, Manifest(**(BASE | manifest)))


def flat(path: Path, schema) -> np.ndarray:
    tensors, _ = load_model(path)
    return np.concatenate([tensors[t.name].ravel() for t in schema.tensors])


CASES = {
    "fedspd": dict(algorithm="fedspd", options={"align_every": 2, "min_cluster_samples": 3}),
    "fedspd-broadcast-metropolis": dict(
        algorithm="fedspd", mix="metropolis", clusters=3, options={"exchange": "broadcast", "first_round": "paper"}
    ),
    "fedspd-dynamic-participation": dict(algorithm="fedspd", dynamic_edges=0.3, participation=0.7, mix="metropolis"),
    "fedspd-warm": dict(algorithm="fedspd", options={"warm_rounds": 1, "hard_rounds": 1, "personalize": "confident"}),
    "fedspd-split": dict(
        algorithm="fedspd", rounds=7, options={"warm_rounds": 5, "hard_rounds": 1, "split": "updates"}
    ),
    "fedspd-local-batch": dict(algorithm="fedspd", aggregation="batch", options={"initialization": "local"}),
    "fedem": dict(algorithm="fedem"),
    "fedem-dynamic": dict(algorithm="fedem", dynamic_edges=0.4),
}


FAST = {"fedspd", "fedspd-broadcast-metropolis", "fedem"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in FAST)) for n in CASES])
def test_processes_equal_the_simulated_backend_bit_for_bit(name, bed):
    graph = graph_of(5, **CASES[name])
    processes = bed(graph=graph, insecure=False)
    assert processes.finish()["failed"] == {}
    peers = run(graph)
    for peer in peers:
        place, schema = processes.place(peer.peer_id), peer.learner.schema
        for slot, model in enumerate(peer.models):
            assert flat(place.cluster_model(slot), schema).tobytes() == model.tobytes(), (peer.peer_id, slot)
        predictor = SavedModel.read(place.personalized_model)
        expected = peer.models if predictor.weights else [peer.personalized]
        assert [model.tobytes() for model in predictor.vectors(schema)] == [model.tobytes() for model in expected]
    report = build_report(processes.directory).values
    for key in ("models_sent", "models_folded", "payload_bytes_sent", "selections_sent"):
        assert report[key] == sum(peer.totals[key] for peer in peers), key


@pytest.mark.parametrize("name", ["fedspd", pytest.param("fedem", marks=pytest.mark.slow)])
def test_async_runs_to_its_end(name, bed):
    processes = bed(graph=graph_of(5, algorithm=name, pace="async", rounds=40, local_epochs=10), insecure=False)
    assert processes.finish()["failed"] == {}
    report = build_report(processes.directory).values
    assert report["state"] == "complete" and report["rounds"] == 40
    assert report["models_folded"] > 0 and report["metric_mean"] > 0.2  # chance is 0.1
    refused = {peer.peer_id: peer.summary["refusals"] for peer in build_report(processes.directory).run.peers}
    assert {code for codes in refused.values() for code in codes} <= {"shutting_down"}, refused
