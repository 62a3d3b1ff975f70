"""The simulated backend: what it leaves behind, what it shares, what stacking may change."""

import numpy as np
import pytest

from coordinator_free_bootstrap import make_graph, parse_manifest
from peer.experiment.simulated import SimulatedSettings, simulate, simulated_peers
from peer.observe.report import build_report


def graph_of(peers=6, **run):
    small = {
        "rounds": 3,
        "model_options": {"hidden": 16},
        "split_options": {"samples_per_peer": 80, "test_per_peer": 40},
    }
    manifest = parse_manifest({**small, **run}, "test")
    return make_graph("erdos-renyi", peers, p=0.6, seed=2, manifest=manifest)


def models_of(peers):
    return [peer.bench.models.model(slot) for peer in peers.values() for slot in range(len(peer.bench.models))]


def test_a_run_directory_is_left_that_the_report_reads(tmp_path):
    seen = []
    graph = graph_of(algorithm="dfca")
    peers = simulate(graph, tmp_path, on_round=lambda completed, accuracy: seen.append((completed, accuracy)))
    report = build_report(tmp_path)
    assert report.values["state"] == "complete"
    assert report.values["rounds"] == 3
    assert [completed for completed, _ in seen] == [1, 2, 3]
    assert report.values["accuracy_mean"] == pytest.approx(seen[-1][1])
    assert report.values["models_sent"] == 3 * 2 * len(graph.edges) == report.values["models_folded"]
    assert report.values["consensus_distance"][0] >= 0
    assert all(peer.status == "completed" for peer in peers.values())


def test_a_regression_is_reported_as_one(tmp_path):
    options = {"features": 3, "samples_per_cluster": 200, "test_per_cluster": 40}
    graph = graph_of(task="linear", task_options=options, split="iid", split_options={}, model_options={}, rounds=1)
    peers = simulate(graph, tmp_path)
    values = build_report(tmp_path).values
    assert (values["metric"], values["metric_better"]) == ("mse", "lower")
    assert values["accuracy_worst"] == max(peer.last_round["accuracy"] for peer in peers.values())


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(tmp_path):
    first, again = (models_of(simulate(graph_of(algorithm="dfca"), None)) for _ in range(2))
    other = models_of(simulate(graph_of(algorithm="dfca", seed=9), None))
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))


def test_equal_initial_models_are_one_array():
    peers = list(simulated_peers(graph_of(algorithm="dfca"), SimulatedSettings()).values())
    assert all(peer.bench.models.model(1) is peers[0].bench.models.model(1) for peer in peers)
    assert len({id(peer.bench.learner.model) for peer in peers}) == 1
    own = simulated_peers(graph_of(algorithm="dfca", options={"initialization": "local"}), SimulatedSettings())
    assert len({peer.bench.models.model(0).tobytes() for peer in own.values()}) == len(own)


@pytest.mark.parametrize(
    "run",
    [
        {"algorithm": "dfca", "options": {"warmup_rounds": 1, "relay_steps": 2}},
        {"algorithm": "dfca", "pace": "async"},
        {"algorithm": "dfca", "participation": 0.6},
        {"algorithm": "dfca", "screening": {"clip": 5.0, "norm_bound": 50.0}},
        {"algorithm": "dfedavg", "encoding": "float16"},
        {"algorithm": "ifca"},
        {"algorithm": "local"},
    ],
)
def test_every_way_to_run_reaches_its_end(run):
    peers = simulate(graph_of(**run), None)
    assert all(peer.engine.round_index == 3 and not peer.engine.refusals for peer in peers.values())


@pytest.mark.parametrize("fold_threads", [2, 4])
def test_folding_for_several_receivers_at_once_changes_no_bit(fold_threads):
    graph = graph_of(algorithm="dfca")
    alone = models_of(simulate(graph, None))
    beside = models_of(simulate(graph, None, SimulatedSettings(fold_threads=fold_threads)))
    assert all(map(np.array_equal, alone, beside))


@pytest.mark.parametrize("algorithm", ["dfca", "dfedavg", "fedspd", "fedem"])
def test_stacked_training_gives_the_same_run_up_to_rounding(algorithm):
    graph = graph_of(algorithm=algorithm, learning_rate=0.05)
    one_by_one = simulate(graph, None)
    stacked = simulate(graph, None, SimulatedSettings(stacked=True))
    for mine, theirs in zip(models_of(one_by_one), models_of(stacked), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-4)


def test_decentralized_ifca_leaves_other_clusters_alone():
    graph = graph_of(algorithm="ifca", rounds=1)
    before = simulated_peers(graph, SimulatedSettings())
    after = simulate(graph, None)
    for peer_id, peer in after.items():
        folded_into = {line["slot"] if isinstance(line, dict) else line[-1] for line in peer.last_round["folded"]}
        trained = peer.bench.facts["trained"]
        assert folded_into <= set(trained)
        for slot in {0, 1} - set(trained):
            assert np.array_equal(peer.bench.models.model(slot), before[peer_id].bench.models.model(slot))


def test_a_pause_in_training_hands_on_what_the_work_raises():
    from peer.experiment.together import Together

    peer = next(iter(simulated_peers(graph_of(algorithm="local"), SimulatedSettings()).values()))

    def fails():
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        Together().run([(peer.bench, fails)])
