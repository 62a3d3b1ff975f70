"""`Run.export_model` and `peer export`: complete state dicts, ONNX graphs, and model cards."""

import hashlib
import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

import peer
from coordinator_free_bootstrap import extras
from coordinator_free_bootstrap.errors import StorageError, TaskError, UsageError
from peer.cli.main import app

ENDINGS = (".pt", ".safetensors", pytest.param(".onnx", marks=pytest.mark.slow))


class Normalized(peer.Task):
    """A task whose model has BatchNorm, a frozen layer, and two names for one weight."""

    classes = 3
    class_names = ("dry", "rain", "snow")
    preprocessing = peer.Preprocessing(divisor=2)

    def make_model(self):
        first, last = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        last.weight = first.weight
        frozen = nn.Linear(4, 4).requires_grad_(False)
        return nn.Sequential(first, nn.BatchNorm1d(4), nn.ReLU(), frozen, last, nn.Linear(4, 3))

    def load_shard(self, peer_id):
        draw = np.random.default_rng(peer_id)
        x = draw.normal(size=(90, 4)).astype(np.float32)
        y = x[:, :3].argmax(1)
        return peer.Shard(train_x=x[:60], train_y=y[:60], test_x=x[60:], test_y=y[60:])


class Moody(Normalized):
    """A model that computes something else when it is traced."""

    def make_model(self):
        class Traced(nn.Linear):
            def forward(self, x):
                return super().forward(x) * (2.0 if torch.compiler.is_exporting() else 1.0)

        return Traced(4, 3)


class Untraceable(Normalized):
    """A model that a graph cannot express."""

    def make_model(self):
        class Branching(nn.Linear):
            def forward(self, x):
                return super().forward(x) if float(x.sum()) > 1e9 else super().forward(-x)

        return Branching(4, 3)


def simulated(task=None, **run):
    graph = peer.Graph.make("ring", peers=3, run={"rounds": 2, **run})
    return peer.simulate(graph, task, progress=False)


@pytest.fixture(scope="module")
def normalized():
    return simulated(Normalized(), algorithm="dfedavg")


@pytest.fixture(scope="module", params=["fedem", "blend"])
def mixed(request):
    return simulated(algorithm=request.param, clusters=2, split_options={"k": 2})


def tensors_of(path):
    return torch.load(path, weights_only=True) if path.suffix == ".pt" else load_file(path)


def outputs_of(path, make_model, inputs):
    """Return the outputs of an exported file in plain PyTorch or onnxruntime, for inputs [n, ...]."""
    if path.suffix == ".onnx":
        return onnxruntime.InferenceSession(path).run(None, {"input": inputs})[0]
    model = make_model()
    model.load_state_dict(tensors_of(path))
    with torch.no_grad():
        return model.eval()(torch.from_numpy(inputs)).numpy()


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_exported_model_gives_the_outputs_of_the_run(normalized, tmp_path, ending):
    task, file = Normalized(), tmp_path / f"model{ending}"
    normalized.export_model(1, file)
    inputs = task.load_shard(1).test_x
    with torch.no_grad():
        expected = normalized.personalized(1)(torch.from_numpy(inputs)).numpy()
    for samples in (inputs, inputs[:1]):  # any number of samples
        found = outputs_of(file, task.make_model, samples)
        np.testing.assert_allclose(found, expected[: len(samples)], rtol=1e-5, atol=1e-6)
    measured = (outputs_of(file, task.make_model, inputs).argmax(1) == task.load_shard(1).test_y).mean()
    assert measured == pytest.approx(normalized.metrics["peers"][1]["metric_value"])


@pytest.mark.parametrize("ending", [".pt", ".safetensors"])
def test_the_state_dict_has_frozen_weights_and_integer_buffers(normalized, tmp_path, ending):
    normalized.export_model(0, tmp_path / f"model{ending}")
    found = tensors_of(tmp_path / f"model{ending}")
    assert found.keys() == Normalized().make_model().state_dict().keys()
    left = normalized.models[0]["personalized"]
    assert {"1.num_batches_tracked", "3.weight", "4.weight"} <= found.keys() - left.keys()
    assert found["1.num_batches_tracked"].dtype == torch.int64
    assert torch.equal(found["4.weight"], found["0.weight"])
    with pytest.raises(RuntimeError, match="Missing key"):  # the run's own file is what travels, and not complete
        Normalized().make_model().load_state_dict({name: torch.from_numpy(t) for name, t in left.items()})


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_card_names_data_algorithm_rounds_metrics_and_digest(normalized, tmp_path, ending):
    file = tmp_path / f"model{ending}"
    card = normalized.export_model(2, file)
    assert card == tmp_path / f"model{ending}.md"
    text = card.read_text()
    accuracy = normalized.metrics["peers"][2]["metric_value"]
    for words in (
        f"| SHA-256 | {hashlib.sha256(file.read_bytes()).hexdigest()} |",
        "The personalized model of peer 2",
        "Normalized |",
        "| training samples of this peer | 60 |",
        "| algorithm | dfedavg |",
        "| rounds completed | 2 of 2 |",
        f"of this model | {accuracy:.4f} |",
        f"mean of the peers | {normalized.metrics['metric_mean']:.4f} |",
        "| trained parameters | 39 |",
        "| frozen parameters | 20 |",
        "| values of buffers | 9 |",
        '"dry", "rain", "snow"',
    ):
        assert words in text


def test_safetensors_and_onnx_hold_the_metadata_of_the_run(normalized, tmp_path):
    for ending in (".safetensors", ".onnx"):
        normalized.export_model(0, tmp_path / f"model{ending}")
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        about = file.metadata()
    assert onnxruntime.InferenceSession(tmp_path / "model.onnx").get_modelmeta().custom_metadata_map == about
    assert (about["algorithm"], about["exported"]) == ("dfedavg", "personalized")
    assert json.loads(about["preprocessing"])["divisor"] == 2


def test_two_exports_are_equal_bytes(normalized, tmp_path):
    for ending in (".pt", ".onnx"):  # the order of metadata in a safetensors file is that of a hash table
        files = [tmp_path / f"{name}{ending}" for name in ("a", "b")]
        for file in files:
            normalized.export_model(0, file)
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_mixture_is_exported_as_it_was_evaluated(mixed, tmp_path, ending):
    """The state dict is that of a ModuleList of all models; the card has their weights."""
    file = tmp_path / f"model{ending}"
    text = mixed.export_model(0, file).read_text()
    assert "| model | mixture |" in text and "of this model |" in text
    about = json.loads(text.split("| weights of the models | ")[1].split(" |")[0].join("[]"))
    assert sum(about) == pytest.approx(1, abs=1e-4)
    from peer.tasks.loading import load_task

    task = load_task(mixed._report.run.manifest, 3)
    shard = task.load_shard(0)
    if ending == ".onnx":
        found = onnxruntime.InferenceSession(file).run(None, {"input": shard.test_x})[0]
    else:
        models = nn.ModuleList(task.make_model() for _ in about)
        models.load_state_dict(tensors_of(file))
        x = torch.from_numpy(shard.test_x)
        found = sum(w * m.eval()(x).softmax(1) for w, m in zip(about, models, strict=True)).detach().numpy()
    assert (found.argmax(1) == shard.test_y).mean() == pytest.approx(
        mixed.metrics["peers"][0]["metric_value"], abs=1e-9
    )


def test_the_confident_predictor_of_fedspd_is_exported_as_it_was_evaluated(tmp_path):
    options = {"personalize": "confident"}
    run = simulated(algorithm="fedspd", clusters=2, split_options={"k": 2}, options=options, final={"epochs": 0})
    text = run.export_model(1, tmp_path / "model.onnx").read_text()
    assert "| model | confident |" in text
    from peer.tasks.loading import load_task

    shard = load_task(run._report.run.manifest, 3).load_shard(1)
    found = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"input": shard.test_x})[0]
    assert (found.argmax(1) == shard.test_y).mean() == pytest.approx(run.metrics["peers"][1]["metric_value"], abs=1e-9)


def test_another_model_than_the_evaluated_one_says_so_in_its_card(mixed, tmp_path):
    for name in ("cluster-0", "cluster-1"):
        text = mixed.export_model(0, tmp_path / "model.pt", name).read_text()
        assert "which is not this model" in text and "The run evaluated another predictor (mixture)" in text
        expected = mixed.models[0][name]
        found = tensors_of(tmp_path / "model.pt")
        assert all(np.array_equal(found[key].numpy(), tensor) for key, tensor in expected.items())


def test_a_body_without_its_private_head_is_refused(tmp_path):
    run = simulated(algorithm="fedrep")
    with pytest.raises(
        StorageError,
        match=r"expected the 4 tensors .*, got 2: 3.weight, 3.bias never leave the peer \(run.private.*\). Give the pers",
    ):
        run.export_model(0, tmp_path / "model.pt", "cluster-0")
    run.export_model(0, tmp_path / "model.pt")
    whole = tensors_of(tmp_path / "model.pt")
    assert len(whole) == 4 and not list(tmp_path.glob("*.onnx"))


@pytest.mark.parametrize(
    ("to", "name", "peer_id", "error", "said"),
    [
        (
            "model.h5",
            None,
            0,
            UsageError,
            "to=: expected a file that ends in .pt, .safetensors or .onnx, got .*model.h5",
        ),
        ("model.pt", None, 7, UsageError, "peer_id=: expected one of 0, 1, 2, got 7"),
        ("model.pt", "cluster-9", 0, UsageError, "expected .*, got 'cluster-9'"),
        ("model.pt", "../x", 0, UsageError, r"model=: expected .*, got '\.\./x'"),
        (
            "model.pt",
            "mixture",
            0,
            UsageError,
            r"\(cluster-0, personalized\), got .*measured with the personalized_model",
        ),
        ("missing/model.pt", None, 0, StorageError, "cannot write .*missing/model.pt"),
    ],
)
def test_what_cannot_be_exported_is_one_sentence(normalized, tmp_path, to, name, peer_id, error, said):
    with pytest.raises(error, match=said):
        normalized.export_model(peer_id, tmp_path / to, name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (Moody, "the ONNX graph differs from the model"),
        (Untraceable, "cannot be converted to ONNX: expected .*, got .*"),
    ],
)
def test_a_model_that_onnx_cannot_express_is_refused(tmp_path, task, said):
    run = simulated(task(), algorithm="local", rounds=1)
    with pytest.raises(TaskError, match=said):
        run.export_model(0, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
    run.export_model(0, tmp_path / "model.pt")


def test_without_the_packages_of_the_extra_onnx_is_refused_at_once(normalized, tmp_path, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "onnxruntime" else object())
    with pytest.raises(UsageError, match=r"package onnxruntime is not installed; .*coordinator-free\[export\]"):
        normalized.export_model(0, tmp_path / "model.onnx")


TASK_FILE = """
import numpy as np
from torch import nn
import peer

class Words(peer.Task):
    classes = 2
    def make_model(self):
        return nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(20, 2))
    def load_shard(self, peer_id):
        x = np.random.default_rng(peer_id).integers(0, 20, (60, 5))
        y = (x[:, 0] > 9).astype(int)
        return peer.Shard(train_x=x[:40], train_y=y[:40], test_x=x[40:], test_y=y[40:])

task = Words()
"""


def test_the_verb_finds_the_task_file_and_takes_its_new_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("words.py").write_text(TASK_FILE)
    graph = peer.Graph.make("ring", peers=3, run={"rounds": 1})
    run = peer.simulate(graph, "words.py:task", out=tmp_path / "out", progress=False)
    Path("elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    verb = ("export", "../out", "--peer", "1")
    assert CliRunner().invoke(app, [*verb, "model.onnx"], catch_exceptions=False).exit_code == 0
    ids = np.arange(10).reshape(2, 5)
    with torch.no_grad():
        expected = run.personalized(1)(torch.from_numpy(ids)).numpy()
    found = onnxruntime.InferenceSession("model.onnx").run(None, {"input": ids})[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    (tmp_path / "words.py").rename("moved.py")
    with pytest.raises(TaskError, match=r"expected the file 'words.py'"):
        CliRunner().invoke(app, [*verb, "model.pt"], catch_exceptions=False)
    moved = CliRunner().invoke(app, [*verb, "model.pt", "--task", "moved.py:task"], catch_exceptions=False)
    assert moved.exit_code == 0 and "wrote model.pt and model.pt.md" in moved.stderr
    assert outputs_of(
        Path("model.pt"), lambda: nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(20, 2)), ids
    ) == pytest.approx(expected)


class Stateful(Normalized):
    """A layer with settings in the state_dict; ``state`` are their first value."""

    def __init__(self, state):
        self.state = state

    def make_model(self):
        class Settings(nn.Linear):
            def __init__(self, state):
                super().__init__(4, 3)
                self.state = state

            def get_extra_state(self):
                return self.state

            def set_extra_state(self, state):
                self.state = state

        return Settings(self.state)


class Turned(Normalized):
    """A buffer of complex numbers (rotary frequencies)."""

    def make_model(self):
        class Rotated(nn.Linear):
            def __init__(self):
                super().__init__(4, 3)
                self.register_buffer("turn", torch.polar(torch.ones(2), torch.arange(2.0)))

            def forward(self, x):
                pairs = torch.view_as_complex(x.reshape(len(x), 2, 2))
                return super().forward(torch.view_as_real(pairs * self.turn).flatten(1))

        return Rotated()


@pytest.mark.parametrize(
    "state", [{"version": 1}, torch.arange(3), None, [1, "a"]], ids=["dict", "tensor", "none", "list"]
)
def test_extra_state_of_a_layer_is_exported(tmp_path, state):
    task = Stateful(state)
    run = simulated(task, algorithm="local", rounds=1)
    run.export_model(0, tmp_path / "model.pt")
    module = task.make_model()
    module.state = "other"
    module.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert str(module.state) == str(state)
    if isinstance(state, torch.Tensor):
        run.export_model(0, tmp_path / "model.safetensors")
        assert torch.equal(load_file(tmp_path / "model.safetensors")["_extra_state"], state)
    else:
        with pytest.raises(
            TaskError, match=r"to safetensors: _extra_state: expected tensors, got (an? \w+|None) \(get_extra_state\)"
        ):
            run.export_model(0, tmp_path / "model.safetensors")


def test_extra_state_that_a_safe_load_refuses_is_one_sentence(tmp_path):
    run = simulated(Stateful(Path("x")), algorithm="local", rounds=1)
    with pytest.raises(TaskError, match=r"export of a state dict: _extra_state: expected extra state.*, got .*"):
        run.export_model(0, tmp_path / "model.pt")
    assert list(tmp_path.iterdir()) == []


def test_complex_buffers_are_exported_and_refused_where_onnx_has_no_such_numbers(tmp_path):
    run = simulated(Turned(), algorithm="dfedavg")
    inputs = Turned().load_shard(0).test_x
    with torch.no_grad():
        expected = run.personalized(0)(torch.from_numpy(inputs)).numpy()
    for ending in (".pt", ".safetensors"):
        run.export_model(0, tmp_path / f"model{ending}")
        found = outputs_of(tmp_path / f"model{ending}", Turned().make_model, inputs)
        assert np.array_equal(found, expected)
    with pytest.raises(TaskError, match="Export a state dict"):
        run.export_model(0, tmp_path / "model.onnx")
