"""Optimizer state across calls, gradient clipping, and training of some parameters only."""

import numpy as np
import pytest

from coordinator_free_bootstrap import Manifest, make_graph
from coordinator_free_bootstrap.errors import TaskError
from peer.algorithms.learner import TrainingPlan
from peer.core.decisions import AlgorithmState
from peer.core.effects import Work
from tests.tools.simulated import peers_of, run

BASE = dict(
    task="digits", model="mlp", model_options={"hidden": 8}, split="rotated_hard", rounds=3, algorithm="dfedavg"
)
SMALL = {"samples_per_peer": 60, "test_per_peer": 20}


def graph_of(peers=3, **changes):
    return make_graph("complete", peers, manifest=Manifest(**(BASE | {"split_options": SMALL} | changes)))


@pytest.fixture(scope="module")
def learner():
    return peers_of(graph_of())[0].learner


STEPS = dict(learning_rate=0.1, batch_size="all")


@pytest.mark.parametrize(
    "settings",
    [
        {"momentum": 0.9},
        {"optimizer": "adam", "learning_rate": 1e-3},
        {"optimizer": "adamw", "learning_rate": 1e-3, "weight_decay": 0.1},
    ],
)
def test_two_calls_with_kept_state_equal_one_call(learner, settings):
    start = learner.initial_model(0)
    settings = STEPS | settings
    whole, _ = learner.train(start, TrainingPlan(epochs=5, seed=1, **settings))
    half, stats = learner.train(start, TrainingPlan(epochs=2, seed=1, optimizer_state={}, **settings))
    kept = {name: values.copy() for name, values in stats.optimizer_state.items()}
    again, _ = learner.train(half, TrainingPlan(epochs=3, seed=1, optimizer_state=kept, **settings))
    assert again.tobytes() == whole.tobytes()
    fresh, _ = learner.train(half, TrainingPlan(epochs=3, seed=1, **settings))
    assert np.abs(fresh - whole).max() > 1e-5, "a fresh optimizer goes another way"
    assert all(values.dtype == np.float32 and values.ndim == 1 for values in kept.values())


def test_adamw_shrinks_the_parameters_apart_from_the_gradient(learner):
    """Loshchilov and Hutter, 2019, arXiv 1711.05101, Algorithm 2: theta (1 - rate decay) beside the step of Adam."""
    start, settings = learner.initial_model(0), dict(epochs=1, seed=1, learning_rate=0.01, batch_size="all")
    adam, _ = learner.train(start, TrainingPlan(optimizer="adam", **settings))
    decoupled, _ = learner.train(start, TrainingPlan(optimizer="adamw", weight_decay=0.3, **settings))
    coupled, _ = learner.train(start, TrainingPlan(optimizer="adam", weight_decay=0.3, **settings))
    np.testing.assert_allclose(decoupled, adam - 0.01 * 0.3 * start, atol=1e-7)
    assert np.abs(decoupled - coupled).max() > 1e-3
    plain, _ = learner.train(start, TrainingPlan(optimizer="adamw", **settings))
    assert plain.tobytes() == adam.tobytes()


def test_state_of_another_model_is_refused(learner):
    with pytest.raises(TaskError, match="momentum_buffer"):
        learner.train(
            learner.initial_model(0),
            TrainingPlan(
                epochs=1, seed=1, momentum=0.9, optimizer_state={"momentum_buffer": np.ones(7, np.float32)}, **STEPS
            ),
        )


def test_a_long_gradient_is_scaled_to_the_limit_and_a_short_one_is_left(learner):
    start = learner.initial_model(0)
    step = {
        clip: learner.train(start, TrainingPlan(epochs=1, seed=1, gradient_clip=clip, **STEPS))[0] - start
        for clip in (None, 1e6, 1e-2)
    }
    assert step[1e6].tobytes() == step[None].tobytes()
    assert np.linalg.norm(step[1e-2]) == pytest.approx(0.1 * 1e-2, rel=1e-3)
    direction = np.dot(step[1e-2], step[None]) / np.linalg.norm(step[1e-2]) / np.linalg.norm(step[None])
    assert direction == pytest.approx(1, abs=1e-3)


def test_only_the_named_parameters_change(learner):
    start = learner.initial_model(0)
    last = [spec.name for spec in learner.schema.tensors][-1]
    trained, _ = learner.train(
        start, TrainingPlan(epochs=2, seed=1, only=frozenset({last}), proximal=(np.zeros_like(start), 1.0), **STEPS)
    )
    changed = {
        spec.name for spec, place in learner.schema.slices() if trained[place].tobytes() != start[place].tobytes()
    }
    assert changed == {last}
    free, _ = learner.train(start, TrainingPlan(epochs=1, seed=1, **STEPS))
    assert all(free[place].tobytes() != start[place].tobytes() for _, place in learner.schema.slices())
    with pytest.raises(TaskError, match="no_such"):
        learner.train(start, TrainingPlan(epochs=1, seed=1, only=frozenset({"no_such"}), **STEPS))


def test_kept_momentum_is_in_the_arrays_that_checkpoints_keep():
    kept, reset = (run(graph_of(momentum=0.9, optimizer_state=how)) for how in ("keep", "reset"))
    size = kept[0].models[0].size
    assert {name: array.shape for name, array in kept[0].optimizers.items()} == {"slot0/momentum_buffer": (size,)}
    assert not reset[0].optimizers
    assert not np.array_equal(kept[0].models[0], reset[0].models[0])


def test_a_training_that_is_undone_leaves_no_momentum_and_no_state():
    changes = dict(momentum=0.9, optimizer_state="keep", learning_rate=1e38, diverged_restores=1, rounds=1)
    peers = peers_of(graph_of(algorithm="ditto", **changes))
    before = [model.tobytes() for model in peers[0].models]
    host = peers[0]._peer.host
    for kind in ("assign", "train"):
        done = host.work(Work(kind, 0))
    assert done.metrics["restores"] == 1
    assert [model.tobytes() for model in peers[0].models] == before
    assert not peers[0].optimizers
    assert done.state == peers[0].state == AlgorithmState((0,), 60)
