"""The simulated backend: its run directory, its shared arrays, and the rounding of stacked training."""

import gc
import json

import numpy as np
import pytest
from torch import nn

from coordinator_free_bootstrap import make_graph, parse_manifest
from coordinator_free_bootstrap.errors import ShardError
from peer.lab.simulated import SimulatedSettings, simulate
from peer.store.garbage import freeze_for_life, frozen_objects
from peer.store.history import read_history
from peer.store.records import FIELDS, Line, Summary
from peer.store.state_dir import StateDir
from peer.tasks import Shard, Task
from peer.view.report.report import build_report
from peer.view.state.records import problem_of, problem_of_line
from peer.view.state.run_files import RunFiles
from peer.view.state.tail import RunTail
from peer.view.state.view import View
from tests.tools.simulated import peers_of, run


def graph_of(peers=6, **run):
    small = {
        "rounds": 3,
        "model_options": {"hidden": 16},
        "split_options": {"samples_per_peer": 80, "test_per_peer": 40},
    }
    manifest = parse_manifest({**small, **run}, "test")
    return make_graph("erdos-renyi", peers, p=0.6, seed=2, manifest=manifest)


def models_of(peers):
    stores = [peer.host.workspace.models for peer in peers.values()]
    return [store.model(slot) for store in stores for slot in range(len(store))]


def test_the_report_reads_the_run_directory(tmp_path):
    seen = []
    graph = graph_of(algorithm="dfca")
    peers = simulate(graph, tmp_path, on_round=lambda completed, accuracy: seen.append((completed, accuracy)))
    report = build_report(tmp_path)
    assert report.values["state"] == "complete"
    assert report.values["rounds"] == 3
    assert [completed for completed, _ in seen] == [1, 2, 3]
    assert report.values["metric_mean"] == pytest.approx(seen[-1][1])
    assert report.values["models_sent"] == 3 * 2 * len(graph.edges) == report.values["models_folded"]
    assert report.values["consensus_distance"][0] >= 0
    assert all(peer.status == "completed" for peer in peers.values())


@pytest.mark.parametrize("algorithm", ["dfca", "fedspd", "dpfl"])
def test_all_that_a_run_writes_is_in_the_vocabulary(algorithm, tmp_path):
    peers = simulate(graph_of(algorithm=algorithm, options={"budget": 1} if algorithm == "dpfl" else {}), tmp_path)
    for peer_id in peers:
        place = StateDir.of_peer(tmp_path, peer_id)
        for line in read_history(place.history):
            assert line.keys() <= FIELDS[line["kind"]] | {"kind", *Line.__annotations__} and not problem_of_line(line)
        summary = json.loads(place.summary.read_text())
        assert summary.keys() <= Summary.__annotations__.keys() and not problem_of(summary, Summary)


@pytest.mark.parametrize("pace", ["lockstep", "async"])
def test_no_neighbor_is_suspected_in_a_run_without_faults(pace, tmp_path):
    simulate(graph_of(peers=8, rounds=4, pace=pace), tmp_path)
    states = {
        line["state"] for peer in RunFiles.read(tmp_path).peers for line in peer.history if line["kind"] == "neighbor"
    }
    assert states <= {"alive", "left"} and "alive" in states
    view = RunTail(tmp_path)
    view.refresh()
    edges = View(view.log, view.graph).everything()["edges"]
    assert {edge["state"] for edge in edges} <= {"alive", "left"}, "the page draws others as broken"


@pytest.mark.parametrize("algorithm", ["local", "dpfl", "ifca", "fedspd", "blend"])
def test_peers_without_faults_are_never_alone(algorithm, tmp_path):
    options = {"budget": 1} if algorithm == "dpfl" else {}
    peers = simulate(graph_of(algorithm=algorithm, options=options, rounds=2), tmp_path)
    assert {peer.status for peer in peers.values()} == {"completed"}
    assert build_report(tmp_path).values["rounds_alone"] == 0


def test_peers_that_reject_every_model_end_as_alone(tmp_path):
    peers = simulate(graph_of(algorithm="dfedavg", screening={"norm_bound": 1e-6}), tmp_path)
    assert {peer.status for peer in peers.values()} == {"alone"}
    values = build_report(tmp_path).values
    assert values["state"] == "alone" and {row["exit_code"] for row in values["peers"]} == {51}
    assert any("alone: folded no model of a neighbor" in warning for warning in values["warnings"])


def test_a_regression_is_reported_with_its_metric(tmp_path):
    options = {"features": 3, "samples_per_cluster": 200, "test_per_cluster": 40}
    graph = graph_of(task="linear", task_options=options, split="iid", split_options={}, model_options={}, rounds=1)
    peers = simulate(graph, tmp_path)
    values = build_report(tmp_path).values
    assert values["metric"] == {"name": "mse", "higher_is_better": False, "share": False}
    assert not [path for path in tmp_path.rglob("*.json*") if '"accuracy' in path.read_text()]
    assert values["metric_worst"] == max(peer.host.last_round["metric_value"] for peer in peers.values())


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(tmp_path):
    first, again = (models_of(simulate(graph_of(algorithm="dfca"), None)) for _ in range(2))
    other = models_of(simulate(graph_of(algorithm="dfca", seed=9), None))
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))


def test_equal_initial_models_are_one_array():
    peers = peers_of(graph_of(algorithm="dfca"))
    assert all(peer.models[1] is peers[0].models[1] for peer in peers)
    assert len({id(peer.learner.model) for peer in peers}) == 1
    own = peers_of(graph_of(algorithm="dfca", options={"initialization": "local"}))
    assert len({peer.models[0].tobytes() for peer in own}) == len(own)


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
def test_every_kind_of_run_completes(run):
    peers = simulate(graph_of(**run), None)
    states = [peer.host.state for peer in peers.values()]
    assert all(state.round.index == 3 and not state.refusals for state in states)


@pytest.mark.parametrize("fold_threads", [2, 4])
def test_fold_threads_change_no_bit(fold_threads):
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


def test_decentralized_ifca_folds_only_into_the_trained_cluster():
    graph = graph_of(algorithm="ifca", rounds=1)
    for before, after in zip(peers_of(graph), run(graph), strict=True):
        trained = set(after.state.trained)
        assert {line[-1] for line in after.history[-1]["folded"]} <= trained
        for slot in {0, 1} - trained:
            assert np.array_equal(after.models[slot], before.models[slot])


def test_an_exception_in_paused_work_is_raised():
    from peer.lab.together import Together

    peer = peers_of(graph_of(algorithm="local"))[0]

    def fails():
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        Together().run([(peer.workspace, fails)])


def test_a_garbage_collection_looks_at_each_object_once(thawed):
    """Else each full collection looks at all peers, and a round takes longer the more peers there are."""
    with frozen_objects():
        kept = [[] for _ in range(10_000)]
        gc.collect()
        assert len(gc.get_objects(generation=2)) < len(kept)
    assert gc.get_freeze_count() == 0 and len(gc.get_objects(generation=2)) > len(kept)


def test_a_process_with_frozen_modules_keeps_them_frozen():
    """Thawed, each later collection would visit them, which takes a third of a second."""
    module: list[int] = []
    freeze_for_life()
    with frozen_objects():
        gc.collect()
    assert not any(each is module for each in gc.get_objects())


def test_neighbors_whose_data_have_other_classes_do_not_train_together(tmp_path):
    task = OwnClasses({2: ("1", "2")}, ("2", "3"))
    graph = make_graph("line", 3, manifest=parse_manifest({"rounds": 1}, "test"))
    with pytest.raises(ShardError, match=r"classes differ: peer 1 has \[2, 3\], peer 2 has \[1, 2\]"):
        simulate(graph, tmp_path, SimulatedSettings(task=task))
    assert not list(tmp_path.glob("peer-*"))
    simulate(graph, None, SimulatedSettings(task=OwnClasses({}, ("2", "3"))))


class OwnClasses(Task):
    """Names of two classes, by peer."""

    classes = 2

    def __init__(self, names, others):
        self.names, self.others = names, others

    def make_model(self):
        return nn.Linear(2, 2)

    def load_shard(self, peer_id):
        x, y = np.ones((8, 2)), np.arange(8) % 2
        return Shard(train_x=x, train_y=y, test_x=x, test_y=y, class_names=self.names.get(peer_id, self.others))
