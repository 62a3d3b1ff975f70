"""The outer step: the steps of PyTorch's SGD, of travelling parameters alone, with a momentum that checkpoints keep."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from coordinator_free_bootstrap import Manifest, make_graph, neighbors_in_round, parse_manifest
from coordinator_free_bootstrap.errors import ConfigError, DivergedError
from peer.algorithms import outer_step
from peer.algorithms.workspace import Workspace
from peer.core.decisions import AlgorithmState
from peer.core.model_store import ModelStore
from peer.core.part import TravellingPart
from peer.core.schema import Schema, TensorSpec
from peer.tasks.effect import keys_without_effect
from tests.tools.simulated import peers_of, run

BODY, HEAD = TensorSpec("body", (2, 3)), TensorSpec("head", (2,))
SCHEMA = Schema((BODY, HEAD, TensorSpec("running_var", (1,), "buffer")))
TRAVELS = Schema((BODY, SCHEMA.tensors[2]))
START = np.arange(1, 10, dtype=np.float32)


def workspace_of(*models, travelling=SCHEMA, **outer):
    """Return the workspace of a peer that holds the models, one in a slot."""
    edges = "one" if outer["optimizer"] == "noloco" else "all"
    manifest = Manifest(algorithm="dfedavg", clusters=1, edges=edges, outer=outer)
    store = ModelStore([model.copy() for model in models], part=TravellingPart.between(SCHEMA, travelling))
    return Workspace(manifest, 0, make_graph("line", 2), SimpleNamespace(schema=SCHEMA), store, AlgorithmState())


def a_round(workspace, average, slots=1, travelling=SCHEMA):
    """Play a round whose average is given; return the model after the step."""
    outer_step.begin(workspace, range(slots))
    workspace.models.replace(0, average.copy())
    outer_step.step(workspace, travelling)
    return workspace.models.model(0)


@pytest.mark.parametrize(("rate", "momentum"), [(0.7, 0.9), (0.7, 0.5), (1.0, 0.3), (0.5, 0.0)])
@pytest.mark.parametrize("optimizer", ["nesterov", "noloco"])
def test_the_steps_are_those_of_sgd_on_the_way_from_the_average_to_the_start(optimizer, rate, momentum):
    workspace = workspace_of(START, optimizer=optimizer, learning_rate=rate, momentum=momentum)
    theirs = torch.tensor(START[:8].astype(np.float64), requires_grad=True)
    sgd = torch.optim.SGD([theirs], lr=rate, momentum=momentum, nesterov=optimizer == "nesterov" and momentum > 0)
    draw = np.random.default_rng(0)
    for _ in range(6):
        average = workspace.models.model(0) + draw.normal(size=9).astype(np.float32)
        theirs.grad = theirs.detach() - torch.tensor(average[:8].astype(np.float64))
        sgd.step()
        found = a_round(workspace, average)
        np.testing.assert_allclose(found[:8], theirs.detach().numpy(), rtol=2e-5, atol=2e-5)
        assert found[8] == average[8], "an averaged buffer makes no step"


def test_a_whole_step_without_momentum_is_the_average():
    workspace = workspace_of(START, optimizer="nesterov", learning_rate=1.0, momentum=0.0)
    np.testing.assert_allclose(a_round(workspace, 3 * START), 3 * START, rtol=1e-6)


def test_private_tensors_are_those_of_the_training():
    workspace = workspace_of(START, travelling=TRAVELS, optimizer="nesterov", learning_rate=0.5, momentum=0.0)
    found = a_round(workspace, 3 * START, travelling=TRAVELS)
    np.testing.assert_allclose(found[:6], 2 * START[:6], rtol=1e-6)
    assert found[6:].tobytes() == (3 * START)[6:].tobytes()
    assert {name: v.size for name, v in workspace.optimizers.items()} == {"outer/slot0": 6}


def spread_after(rounds, optimizer, momentum):
    """Return how far 30 peers differ that only average, on one edge of an expander, in shares of the first differences."""
    graph = make_graph("expander", 30, degree=4, manifest=Manifest(edges="one"))
    first = np.random.default_rng(1).normal(size=(30, 9)).astype(np.float32)
    peers = {i: workspace_of(first[i], optimizer=optimizer, learning_rate=0.7, momentum=momentum) for i in graph.ids}
    for t in range(rounds):
        models = {i: peer.models.model(0) for i, peer in peers.items()}
        for i, peer in peers.items():
            around = [models[n] for n in neighbors_in_round(graph, t, i)]
            a_round(peer, np.mean([models[i], *around], axis=0, dtype=np.float32))
    last = np.array([peer.models.model(0)[:8] for peer in peers.values()])
    return np.abs(last - last.mean(0)).max() / np.abs(first - first.mean(0)).max()


@pytest.mark.parametrize("optimizer", ["nesterov", "noloco"])
def test_on_one_edge_peers_agree_with_the_default_momentum_and_part_with_that_of_diloco(optimizer):
    assert spread_after(80, optimizer, 0.5) < 0.02
    assert spread_after(80, optimizer, 0.9) > 100


def test_a_slot_that_the_round_has_not_changed_stays_and_keeps_its_momentum():
    workspace = workspace_of(START, START, optimizer="nesterov", learning_rate=0.7, momentum=0.9)
    a_round(workspace, 2 * START, slots=2)
    assert workspace.models.model(1).tobytes() == START.tobytes() and [*workspace.optimizers] == ["outer/slot0"]
    before, momentum = workspace.models.model(0), workspace.optimizers["outer/slot0"]
    outer_step.begin(workspace, range(2))
    outer_step.step(workspace, SCHEMA)
    assert workspace.models.model(0) is before and workspace.optimizers["outer/slot0"] is momentum


def test_the_models_and_the_momentum_of_the_round_before_are_not_changed_in_place():
    """A checkpoint of the round before may hold them."""
    workspace = workspace_of(START, optimizer="noloco", learning_rate=0.7, momentum=0.5)
    first = a_round(workspace, 2 * START)
    momentum = workspace.optimizers["outer/slot0"]
    copies = first.copy(), momentum.copy()
    a_round(workspace, 5 * START)
    assert first.tobytes() == copies[0].tobytes() and momentum.tobytes() == copies[1].tobytes()


@pytest.mark.parametrize(("first", "far"), [(1, 3e38), (-3e37, 3.4e38)])
def test_a_step_that_is_not_finite_ends_the_peer_with_the_keys_to_lower(first, far):
    workspace = workspace_of(first * START, optimizer="nesterov", learning_rate=2.0, momentum=0.9)
    with pytest.raises(
        DivergedError, match=r"outer step of slot 0 .* not finite; lower run\.outer\.momentum \(0\.9\) or "
    ):
        a_round(workspace, np.full(9, far, np.float32))


def test_catching_up_forgets_the_momentum_and_nothing_else():
    workspace = workspace_of(START, optimizer="nesterov", learning_rate=0.7, momentum=0.9)
    workspace.optimizers["slot0/momentum_buffer"] = START
    a_round(workspace, 2 * START)
    outer_step.forget(workspace)
    assert [*workspace.optimizers] == ["slot0/momentum_buffer"]


def test_noloco_needs_one_edge_a_round():
    with pytest.raises(ConfigError, match=r'noloco with edges "one", got noloco with edges "all"\. Set run\.edges=one'):
        parse_manifest({"outer": {"optimizer": "noloco"}}, "")


@pytest.mark.parametrize("name", ["ditto", "blend", "dpsgd", "fedspd"])
def test_algorithms_that_end_a_round_in_their_own_way_take_no_step(name):
    manifest = Manifest(algorithm=name, outer={"optimizer": "nesterov"})
    assert keys_without_effect(manifest)["run.outer.optimizer"] == f"algorithm {name} ends a round in its own way"


@pytest.mark.parametrize("name", ["dfedavg", "fedprox", "dfca"])
def test_a_run_differs_by_the_step_and_keeps_a_momentum_for_each_slot(name):
    def graph(**changes):
        settings = {"task": "digits", "model_options": {"hidden": 8}, "rounds": 3, "algorithm": name, "clusters": 2}
        small = {"samples_per_peer": 60, "test_per_peer": 20}
        return make_graph("complete", 3, manifest=Manifest(**settings, model="mlp", split_options=small, **changes))

    plain, stepped = run(graph()), run(graph(outer={"optimizer": "nesterov"}))
    assert not plain[0].optimizers and {*stepped[0].optimizers} <= {"outer/slot0", "outer/slot1"}
    assert stepped[0].optimizers and not np.array_equal(plain[0].models[0], stepped[0].models[0])
    assert peers_of(graph())[0].algorithm.steps_out
