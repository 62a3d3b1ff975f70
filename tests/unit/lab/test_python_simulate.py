"""`peer.simulate` and `peer.Run`: tasks and algorithms of a program, and what a run left."""

import numpy as np
import pytest
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

import peer
from coordinator_free_bootstrap.errors import ConfigError, StorageError, TaskError, UsageError
from peer.lab.simulated import SimulatedSettings
from peer.lab.simulated import simulate as backend
from peer.store.model_file import load_model


class Blobs(peer.Task):
    """Two clouds of points; half of the peers have the labels swapped."""

    classes = 2
    preprocessing = peer.Preprocessing()

    def make_model(self):
        return nn.Linear(3, 2)

    def load_shard(self, peer_id):
        draw = np.random.default_rng(peer_id)
        y = draw.integers(0, 2, 60)
        x = (draw.normal(size=(60, 3)) + 3.0 * y[:, None]).astype(np.float32)
        y = (y + peer_id) % 2
        return peer.Shard(train_x=x[:40], train_y=y[:40], test_x=x[40:], test_y=y[40:])


@pytest.fixture(scope="module")
def graph():
    return peer.Graph.make("ring", peers=4, run={"algorithm": "dfca", "rounds": 3})


@pytest.fixture(scope="module")
def run(graph):
    return peer.simulate(graph, progress=False)


def test_the_models_are_those_of_the_backend_bit_for_bit(graph, run, tmp_path):
    backend(graph, tmp_path, SimulatedSettings())
    assert list(run.models) == [0, 1, 2, 3]
    for peer_id, models in run.models.items():
        assert sorted(models) == ["cluster-0", "cluster-1", "personalized"]
        for name, tensors in models.items():
            expected = load_model(tmp_path / f"peer-{peer_id}" / "models" / f"{name}.safetensors")[0]
            assert tensors.keys() == expected.keys()
            assert all(np.array_equal(tensors[key], expected[key]) for key in expected)


def test_the_frame_has_a_row_for_each_peer_and_round(run):
    table = run.frame()
    assert list(zip(table.peer_id, table.round_index, strict=True)) == [(p, r) for p in range(4) for r in range(3)]
    last = table[table.round_index == 2].metric_value
    assert last.mean() == pytest.approx(run.metrics["metric_mean"])
    assert {"loss", "seconds.train", "payload_bytes_sent", "true_cluster"} <= set(table.columns)


def test_a_picture_of_any_number_over_rounds(run, tmp_path):
    run.plot("metric_value").savefig(tmp_path / "a.png")
    axes = run.plot("seconds.train").axes[0]
    assert (axes.get_ylabel(), list(axes.lines[0].get_xdata())) == ("seconds.train", [1, 2, 3])
    with pytest.raises(UsageError, match="did you mean metric_value"):
        run.plot("metric_valeu")


def test_the_personalized_model_is_a_module_with_the_weights_of_the_file(run):
    module = run.personalized(3)
    assert not module.training
    for name, tensor in module.state_dict().items():
        assert np.array_equal(tensor.numpy(), run.models[3]["personalized"][name])
    with pytest.raises(UsageError, match="peer_id=: expected one of 0, 1, 2, 3, got 9"):
        run.personalized(9)


def test_the_files_vanish_with_the_object(graph):
    run = peer.simulate(graph, progress=False)
    models, directory = run.models, run.directory
    del run
    assert models[0]["personalized"] and directory.is_dir()
    del models
    assert not directory.exists()


def test_a_run_directory_can_be_read_again(graph, tmp_path):
    made = peer.simulate(graph, out=tmp_path / "run", progress=False)
    again = peer.Run(tmp_path / "run")
    assert again.metrics == made.metrics
    with pytest.raises(UsageError, match="no such directory"):
        peer.Run(tmp_path / "other")


def test_an_unfinished_peer_has_no_personalized_model(graph, tmp_path):
    run = peer.simulate(graph, out=tmp_path, progress=False)
    (tmp_path / "peer-1" / "models" / "personalized.safetensors").unlink()
    with pytest.raises(StorageError, match="which a peer writes when it has completed the run"):
        run.personalized(1)


def test_a_task_object_of_the_program():
    graph = peer.Graph.make("ring", peers=4, run={"algorithm": "local", "rounds": 5, "batch_size": 10})
    run = peer.simulate(graph, Blobs(), progress=False)
    assert run.metrics["task"] == f"{__name__}:Blobs"
    assert run.metrics["metric_mean"] > 0.9
    assert run.personalized(0)(torch.zeros(1, 3)).shape == (1, 2)


def test_a_wrong_task_is_refused(graph):
    with pytest.raises(TaskError, match="expected an object or class of type Task, got a int"):
        peer.simulate(graph, 3, progress=False)
    with pytest.raises(TaskError, match=r"no_such\.py"):
        peer.simulate(graph, "no_such.py:task", progress=False)


class Quiet(peer.Algorithm):
    """Train the own model, and send nothing."""

    name = "quiet_test"

    def offers(self, state, round_index, step, neighbor, select):
        return ()


def test_an_algorithm_class_of_the_program(graph):
    run = peer.simulate(graph, algorithm=Quiet, progress=False)
    assert (run.metrics["algorithm"], run.metrics["models_sent"]) == ("quiet_test", 0)


def test_an_algorithm_without_a_name_or_with_that_of_another_is_refused(graph):
    class Nameless(peer.Algorithm):
        pass

    class Dfca(peer.Algorithm):
        name = "dfca"

    for algorithm, words in (
        (Nameless, "name: expected a text, such as .*, got None"),
        (Dfca, "expected an unused name, got 'dfca' of an installed"),
        (int, "peer.Algorithm"),
    ):
        with pytest.raises(ConfigError, match=words):
            peer.simulate(graph, algorithm=algorithm, progress=False)


def test_the_number_of_threads_of_the_program_is_restored(graph):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        peer.simulate(graph, progress=False)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_an_option_without_effect_is_refused(graph):
    with pytest.raises(UsageError, match=r"^data_root=: "):
        peer.simulate(graph, data_root="data", progress=False)


def test_watch_of_no_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no such directory"):
        peer.watch(tmp_path / "none")


def test_progress_counts_rounds(graph, capsys):
    peer.simulate(graph)
    assert "3/3" in capsys.readouterr().err


def test_options_of_an_own_algorithm_are_set_in_the_graph():
    class Patient(peer.Algorithm):
        """Averages only in every n-th round."""

        name = "patient"

        class Options(BaseModel):
            model_config = ConfigDict(extra="forbid")
            every: int = Field(1, ge=1)

        def screen_arrival(self, workspace, header, model):
            used.add(self.options.every)
            return super().screen_arrival(workspace, header, model)

    used = set()
    graph = peer.Graph.make("line", peers=2, run={"rounds": 1, "algorithm": Patient, "options": {"every": 3}})
    assert graph.manifest.algorithm == "patient" and graph.manifest.options == {"every": 3}
    peer.simulate(graph, progress=False)
    assert used == {3}
    with pytest.raises(ConfigError, match=r"run\.options\.every: expected"):
        peer.Graph.make("line", peers=2, run={"algorithm": Patient, "options": {"every": 0}})
    with pytest.raises(ConfigError, match=r"run\.options\.often: expected an option of algorithm 'patient'"):
        peer.Graph.make("line", peers=2, run={"algorithm": Patient, "options": {"often": 2}})


def test_a_notebook_shows_an_error_as_one_sentence_and_the_trace_on_request(monkeypatch):
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shown = []
    monkeypatch.setattr(shell, "_showtraceback", lambda kind, error, lines: shown.append(lines))
    wrong = "import peer; peer.Graph.make('ring', peers=3, run={'task': 'digitz'})"
    shell.run_cell(wrong)
    (lines,) = shown
    assert lines[0].startswith("TaskError: run.task: expected ") and "got 'digitz'" in lines[0] and len(lines) == 2
    assert lines[1] == "(the whole trace: %env PEER_TRACEBACK=1)"
    monkeypatch.setenv("PEER_TRACEBACK", "1")
    shell.run_cell(wrong)
    assert len(shown[1]) > 5 and any("make_graph" in line or "graph.py" in line for line in shown[1])


def test_a_run_says_at_its_start_what_it_took_the_targets_for(capsys):
    graph = peer.Graph.make("ring", peers=4, run={"rounds": 1})
    peer.simulate(graph, Blobs())
    assert "learns classification with 2 classes; metric accuracy, higher is better\n" in capsys.readouterr().err
    draw = np.random.default_rng(1)
    peer.simulate((draw.normal(size=(160, 3)).astype(np.float32), draw.normal(size=160).astype(np.float32)))
    assert "learns regression; metric mse, lower is better" in capsys.readouterr().err
    peer.simulate(graph, Blobs(), progress=False)
    assert capsys.readouterr().err == ""
