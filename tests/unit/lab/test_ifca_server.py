"""IFCA with a server, the upper bound in the papers' tables."""

from dataclasses import replace

import numpy as np
import pytest

from coordinator_free_bootstrap import make_graph, parse_manifest
from peer.core.averaging import accumulate
from peer.lab.ifca_server import IfcaServerOptions, run_ifca_server
from peer.lab.simulated import SimulatedSettings
from peer.view.report.report import build_report
from tests.tools.simulated import peers_of


def graph_of(peers=4, **run):
    small = {
        "rounds": 2,
        "model_options": {"hidden": 16},
        "split_options": {"samples_per_peer": 80, "test_per_peer": 40},
    }
    return make_graph("complete", peers, manifest=parse_manifest({**small, **run}, "test"))


def test_one_cluster_is_federated_averaging():
    graph = graph_of(clusters=1)
    client = run_ifca_server(graph, None)[0]
    reference = peers_of(graph)
    model = reference[0].models[0]
    for round_index in range(2):
        total = np.zeros_like(model)
        for peer in reference:
            peer.workspace.round_index = round_index
            accumulate(total, peer.workspace.fit(model, peer.workspace.slot_plan(0))[0])
        model = total / np.float32(4)
    result = reference[0].learner.evaluate(model)
    assert client.host.last_round["metric_value"] == result.metric
    assert client.host.last_round["loss"] == result.loss


def test_a_gradient_average_is_divided_by_all_clients():
    """One full-batch step each, divided by the number of all clients: with one cluster, the mean of all steps."""
    graph = graph_of(clusters=1, rounds=1)
    client = run_ifca_server(graph, None, IfcaServerOptions(update="grad_avg"))[0]
    reference = peers_of(graph)
    old = reference[0].models[0]
    steps = [
        peer.workspace.fit(old, replace(peer.workspace.slot_plan(0), batch_size="all", epochs=1))[0] - old
        for peer in reference
    ]
    expected = reference[0].learner.evaluate(old + np.mean(steps, axis=0, dtype=np.float32))
    assert client.host.last_round["loss"] == pytest.approx(expected.loss, rel=1e-5)


def test_a_cluster_without_clients_keeps_its_model(tmp_path):
    graph = graph_of(
        clusters=3, peers=2, rounds=1, split="iid", split_options={"samples_per_peer": 80, "test_per_peer": 9}
    )
    initial = peers_of(graph)[0].models
    found = run_ifca_server(graph, tmp_path)[0].host.workspace.models
    kept = [slot for slot in range(3) if np.array_equal(found.model(slot), initial[slot])]
    assert 1 <= len(kept) < 3  # two clients choose at most two of three


def test_restarts_keep_the_run_of_lowest_training_loss(tmp_path):
    graph = graph_of()
    losses = {}  # mean training loss of a run -> its mean test loss
    for seed in (graph.manifest.seed, graph.manifest.seed + 7919):
        clients = run_ifca_server(graph_of(seed=seed), tmp_path / str(seed)).values()
        training = np.mean(
            [min(c.host.workspace.learner.mean_loss(c.host.workspace.models.model(s)) for s in (0, 1)) for c in clients]
        )
        losses[training] = np.mean([c.host.last_round["loss"] for c in clients])
    assert losses[min(losses)] != pytest.approx(losses[max(losses)], rel=1e-3)
    rounds = []
    options, place = IfcaServerOptions(restarts=2), tmp_path / "both"
    run_ifca_server(graph, place, options, on_round=lambda done, accuracy: rounds.append(done))
    report = build_report(place).values
    assert rounds == [1, 2, 3, 4]
    assert report["algorithm"] == "ifca-server"
    assert report["state"] == "complete"
    found = np.mean([peer["loss"] for peer in report["peers"]])
    assert found == pytest.approx(losses[min(losses)])


def test_stacked_clients_train_as_single_clients():
    graph = graph_of()
    alone, stacked = (run_ifca_server(graph, None, settings=SimulatedSettings(stacked=s)) for s in (False, True))
    for peer_id, client in alone.items():
        assert stacked[peer_id].host.last_round["loss"] == pytest.approx(client.host.last_round["loss"], rel=1e-3)
