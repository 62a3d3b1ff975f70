"""No run makes a model invalid without a word: noise on variances is refused, a loss that is not a number ends the run."""

import numpy as np
import pytest
import torch
from torch import nn

import peer
from coordinator_free_bootstrap.errors import ConfigError, DivergedError, TaskError

DP = {"dp_epsilon": 1.0, "min_cluster_samples": 5}


class Rows(peer.Task):
    """Features of small spread; ``layer`` normalizes them."""

    classes = 3
    preprocessing = peer.Preprocessing()

    def __init__(self, *layers):
        self.layers = layers

    def make_model(self):
        return nn.Sequential(*(make() for make in self.layers), nn.Linear(6, 3))

    def load_shard(self, peer_id):
        draw = np.random.default_rng(peer_id)
        y = draw.integers(0, 3, 60)
        x = ((draw.normal(size=(60, 6)) + y[:, None]) * 0.05).astype(np.float32)
        return peer.Shard(train_x=x[:40], train_y=y[:40], test_x=x[40:], test_y=y[40:])


def simulated(task, **run):
    graph = peer.Graph.make("complete", peers=3, run={"rounds": 3, "algorithm": "dfedavg", **run})
    return peer.simulate(graph, task, progress=False)


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (lambda: nn.BatchNorm1d(6), "0.running_var"),
        (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)), r"0.parametrizations.weight.0._v"),
    ],
    ids=["BatchNorm", "spectral norm"],
)
def test_noise_on_buffers_is_refused_with_the_remedy(layer, name):
    with pytest.raises(
        ConfigError, match=rf"run.options.dp_epsilon: .*'{name}'.*torch.nn.GroupNorm in place of BatchNorm"
    ):
        simulated(Rows(layer), algorithm="fedspd", options=DP)


def test_with_group_norm_a_private_run_gives_numbers():
    run = simulated(Rows(lambda: nn.GroupNorm(2, 6)), algorithm="fedspd", options=DP)
    assert all(np.isfinite(found["loss"]) for found in run.metrics["peers"])


def test_the_noise_that_splits_a_warm_center_leaves_buffers_alone():
    """With noise of this size on all values some variance would be negative."""
    options = {"warm_rounds": 1, "split_noise": 3.0}
    run = simulated(Rows(lambda: nn.BatchNorm1d(6)), algorithm="fedspd", options=options, rounds=2)
    found = [run.models[i][f"cluster-{slot}"]["0.running_var"] for i in range(3) for slot in range(2)]
    assert (np.array(found) > 0).all()


@pytest.mark.parametrize("encoding", ["int8", "delta_int8", "delta_top1"])
def test_lossy_encodings_of_variances_give_finite_losses(encoding):
    run = simulated(Rows(lambda: nn.BatchNorm1d(6)), encoding=encoding, rounds=6)
    assert all(np.isfinite(found["loss"]) for found in run.metrics["peers"])


class Root(nn.Module):
    """The root of a value that is negative for a few test samples only."""

    def __init__(self, floor):
        super().__init__()
        self.last, self.floor = nn.Linear(6, 3), floor

    def forward(self, x):
        found = self.last(x)
        return found if self.training else found + torch.sqrt(x[:, :1] + self.floor) * 0


class Rooted(Rows):
    def make_model(self):
        return Root(0.05)


def test_a_final_loss_that_is_not_a_number_ends_the_run():
    with pytest.raises(
        DivergedError, match=r"the loss on its test samples is nan after the last round, with a model of finite"
    ):
        simulated(Rooted())


def test_a_loss_that_is_not_a_number_in_training_ends_the_run():
    class Log(Rows):
        def loss(self, outputs, targets):
            return super().loss(outputs, targets) + torch.log(-outputs.detach().abs().sum(1)) * 0

    with pytest.raises((DivergedError, TaskError)):
        simulated(Log(lambda: nn.Linear(6, 6)))
