"""Shared scaling from the task to the model file: peers of one process, with real training."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import peer
from coordinator_free_bootstrap import Graph, make_graph, parse_manifest
from coordinator_free_bootstrap.errors import ConfigError, GraphError, PeerError, ShardError, StorageError, TaskError
from coordinator_free_bootstrap.revision import next_graph, with_changes
from peer.lab.simulated import SimulatedSettings, simulate
from peer.learning.learner import TorchLearner
from peer.tasks.preprocessing import SHARED, Preprocessing, Shared
from peer.tasks.shard import Shard
from peer.tasks.task import Task
from peer.tasks.training_data import training_data
from peer.view.models.saved import SavedModel

SHIFTS = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, -6.0], [6.0, -6.0]])
ROWS = 120


class Sites(Task):
    """Each site measures around another point; the class depends on the raw values alone, in the same way everywhere."""

    classes = 2
    preprocessing = SHARED

    def make_model(self) -> nn.Module:
        return nn.Linear(3, 2)

    def raw(self, peer_id: int, rows: int = 2 * ROWS) -> tuple[np.ndarray, np.ndarray]:
        draw = np.random.default_rng(peer_id)
        x = SHIFTS[peer_id] + draw.normal(0, 2, (rows, 2))
        y = (x[:, 0] + x[:, 1] > 0).astype(np.int64)
        return np.column_stack([x, np.full(rows, 7.0)]), y

    def load_shard(self, peer_id: int) -> Shard:
        x, y = self.raw(peer_id)
        return Shard(train_x=x[:ROWS], train_y=y[:ROWS], test_x=x[ROWS:], test_y=y[ROWS:])


class OwnSites(Sites):
    """The same data; each site scales by its own numbers."""

    preprocessing = None

    def load_shard(self, peer_id: int) -> Shard:
        shard = super().load_shard(peer_id)
        own = Preprocessing.standardizing(shard.train_x)
        return replace(shard, train_x=own.apply(shard.train_x), test_x=own.apply(shard.test_x), preprocessing=own)


def graph_of(**run: object) -> Graph:
    fields = {"algorithm": "dfedavg", "rounds": 8, "learning_rate": 0.5, "local_epochs": 3, "clusters": 1}
    return make_graph("ring", 4, manifest=parse_manifest(fields | run, "test"))


def history(run: Path, peer_id: int, kind: str) -> list[dict[str, object]]:
    lines = (run / f"peer-{peer_id}" / "history.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == kind]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared")
    simulate(graph_of(), folder, SimulatedSettings(task=Sites()))
    return folder


def test_every_model_file_has_the_same_scaling_which_is_that_of_all_rows(run: Path) -> None:
    texts = {path.name: SavedModel.read(path).metadata["preprocessing"] for path in run.glob("peer-*/models/*")}
    scalings = {SavedModel.read(path).metadata["preprocessing"] for path in run.glob("peer-*/models/*.safetensors")}
    assert len(scalings) == 1, texts
    found = Preprocessing.from_json(scalings.pop())
    every = np.concatenate([Sites().load_shard(i).train_x for i in range(4)])
    np.testing.assert_allclose(found.mean, every.mean(0), rtol=1e-6)
    np.testing.assert_allclose(found.std, [*every.std(0)[:2], 1.0], rtol=1e-6)
    assert found.shared == Shared(10, sites=4, samples=4 * ROWS)


def test_the_history_of_every_peer_has_the_numbers_and_their_digest(run: Path) -> None:
    lines = [history(run, i, "scaling") for i in range(4)]
    assert [len(each) for each in lines] == [1] * 4
    first = {key: value for key, value in lines[0][0].items() if key not in ("t", "time")}
    assert all({key: each[0][key] for key in first} == first for each in lines)
    assert first["samples"] == {str(i): ROWS for i in range(4)}
    assert first["classes"] == {str(i): np.bincount(Sites().load_shard(i).train_y).tolist() for i in range(4)}
    assert first["deviation"][2] == 0


def test_a_personalized_model_predicts_raw_rows_of_every_site(run: Path) -> None:
    saved = SavedModel.read(run / "peer-0" / "models" / "personalized.safetensors")
    scaling = Preprocessing.from_json(saved.metadata["preprocessing"])
    for i in range(4):
        x, y = Sites().raw(i)
        outputs = scaling.apply(x) @ saved.tensors["weight"].T + saved.tensors["bias"]
        assert np.mean(outputs.argmax(1) == y) > 0.95


def test_shared_scaling_beats_own_scaling_where_sites_measure_around_other_points(run: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    simulate(graph_of(), own, SimulatedSettings(task=OwnSites()))

    def accuracy(folder: Path) -> float:
        return float(np.mean([history(folder, i, "end")[0]["metric_value"] for i in range(4)]))

    assert accuracy(run) > 0.97
    assert accuracy(run) > accuracy(own) + 0.05


def test_stacked_training_and_training_one_after_another_scale_alike(tmp_path: Path) -> None:
    for stacked in (False, True):
        simulate(graph_of(rounds=2), tmp_path / str(stacked), SimulatedSettings(task=Sites(), stacked=stacked))
    one, other = (history(tmp_path / str(stacked), 2, "end")[0] for stacked in (False, True))
    assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)


def test_an_interrupted_simulation_resumes_with_what_was_agreed(tmp_path: Path, run: Path) -> None:
    said: list[str] = []
    settings = SimulatedSettings(task=Sites(), tell=said.append)

    def stop(completed: int, metric: float | None) -> None:
        if completed == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        simulate(graph_of(), tmp_path, settings, stop)
    simulate(graph_of(), tmp_path, settings)
    assert any("resum" in text for text in said)
    for i in range(4):
        pair = (folder / f"peer-{i}" / "models" / "personalized.safetensors" for folder in (tmp_path, run))
        one, other = (SavedModel.read(path) for path in pair)
        assert all(np.array_equal(one.tensors[name], other.tensors[name]) for name in ("weight", "bias"))


def test_a_server_form_scales_by_all_sites_too() -> None:
    from peer.lab.simulated import clients_of_a_server

    clients = clients_of_a_server(graph_of(), SimulatedSettings(task=Sites()))
    shards = [client.host.workspace.learner.shard for client in clients.values()]  # type: ignore[attr-defined]
    assert len({shard.preprocessing.to_json() for shard in shards}) == 1
    assert not shards[0].preprocessing.is_pending
    assert abs(np.concatenate([shard.train_x for shard in shards]).mean(0)).max() < 1e-5


# ---- a task as users write it -------------------------------------------------------------------------------------------


class Words(Sites):
    """The word in place of an object."""

    preprocessing = "shared"  # type: ignore[assignment]


def test_the_word_shared_is_a_preprocessing() -> None:
    task = Words()
    found = peer.simulate(graph_of(rounds=1), task, progress=False)
    assert found.metrics["rounds"] == 1
    assert task.preprocessing == "shared", "the user's object is not changed"


class Typo(Sites):
    preprocessing = "share"  # type: ignore[assignment]


def test_another_word_is_refused() -> None:
    with pytest.raises(TaskError, match="expected a Preprocessing, 'shared', or None, got 'share'"):
        peer.simulate(graph_of(rounds=1), Typo(), progress=False)


class Times(Sites):
    """Inputs that float32 cannot tell apart from adjacent ones."""

    def load_shard(self, peer_id: int) -> Shard:
        shard = super().load_shard(peer_id)
        return replace(shard, train_x=1.7e9 + 1e4 * shard.train_x, test_x=1.7e9 + 1e4 * shard.test_x)


def test_samples_held_out_for_validation_are_raw_in_full_too() -> None:
    data = training_data(Times(), 0, graph_of(algorithm="dpfl", options={"budget": 2}).manifest)
    assert data.train_x.dtype == data.val_x.dtype == np.float64
    assert len(data.train_x) < ROWS


def test_data_that_are_no_shard_are_refused() -> None:
    class Loaders(Sites):
        def load_data(self, peer_id: int) -> object:
            return {"train": [], "test": []}

        def train(self, model: nn.Module, data: object, budget: object) -> None:
            raise NotImplementedError

    with pytest.raises(TaskError, match="load_data: expected a Shard from load_shard for shared scaling, got a dict"):
        TorchLearner(Loaders(), {"train": [], "test": []})


def test_until_the_agreement_a_learner_is_tried_with_its_own_numbers_and_keeps_the_raw_values_in_full() -> None:
    learners = [TorchLearner(Times(), Times().load_shard(i)) for i in range(2)]
    assert all(abs(learner.shard.train_x.mean(0)[:2]).max() < 0.01 for learner in learners)
    assert learners[0].shard.preprocessing is not None and learners[0].shard.preprocessing.is_pending
    numbers = {i: learner.scaling.numbers for i, learner in enumerate(learners) if learner.scaling is not None}
    for i, learner in enumerate(learners):
        assert learner.scaling is not None
        learner.scaling.agree(numbers)
        learner.scaling.apply()
        agreed = learner.shard.preprocessing
        assert agreed is not None and not agreed.is_pending
        expected = (Times().load_shard(i).train_x - np.array(agreed.mean)) / np.array(agreed.std)
        np.testing.assert_allclose(learner.shard.train_x, expected, rtol=1e-5, atol=1e-6)


# ---- refusals -----------------------------------------------------------------------------------------------------------


class Small(Sites):
    preprocessing = Preprocessing(shared=Shared(samples_min=ROWS + 1))


def test_a_site_below_the_least_number_does_not_start() -> None:
    with pytest.raises(ShardError, match=rf"expected at least {ROWS + 1} training samples of a site .* got {ROWS}\."):
        peer.simulate(graph_of(rounds=1), Small(), progress=False)


def test_neighbors_with_another_scaling_refuse_each_other_before_any_number_is_sent() -> None:
    class Mixed(Sites):
        def load_shard(self, peer_id: int) -> Shard:
            task = Sites() if peer_id else OwnSites()
            return task.load_shard(peer_id)

    with pytest.raises(PeerError, match="scalings of inputs differ") as caught:
        peer.simulate(graph_of(rounds=1), Mixed(), progress=False)
    assert "mean and deviation of all sites, each of 10 samples or more" in str(caught.value)


def test_noise_that_does_not_cover_the_sums_is_refused() -> None:
    options = {"dp_epsilon": 1.0, "dp_clip": 1.0, "min_cluster_samples": 10}
    with pytest.raises(ConfigError, match="whose noise does not cover the sums of a site"):
        peer.simulate(graph_of(algorithm="fedspd", clusters=2, options=options), Sites(), progress=False)


def test_a_graph_of_two_parts_is_refused() -> None:
    graph = graph_of(algorithm="local", rounds=1)
    apart = replace(graph, edges=((0, 1), (2, 3)))
    with pytest.raises(GraphError, match="expected a connected graph for shared scaling, got 2 parts"):
        peer.simulate(apart, Sites(), progress=False)


def test_sites_neither_come_nor_go_once_the_models_are_trained(tmp_path: Path) -> None:
    graph = graph_of()
    gone = next_graph(graph, with_changes(graph, remove=[3], from_round=2))
    with pytest.raises(GraphError, match=r"peers: expected \[0, 1, 2, 3\], by whose numbers .* got \[0, 1, 2\]"):
        simulate(graph, tmp_path, SimulatedSettings(task=Sites()), revisions=[gone])


def test_a_model_from_before_the_agreement_predicts_nothing(run: Path, tmp_path: Path) -> None:
    saved = SavedModel.read(run / "peer-0" / "models" / "personalized.safetensors")
    saved.metadata["preprocessing"] = SHARED.to_json()
    with pytest.raises(StorageError, match="ended before the peers had agreed on them"):
        saved.preprocessing(graph_of().manifest)
