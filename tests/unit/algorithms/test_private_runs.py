"""With differential privacy no message of a run carries a sample count.

Method: engines of three peers whose tensor work is FedSPD's own, on shards of 137 samples; every message is searched.
"""

from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from peer.algorithms.learner import ABILITIES
from peer.algorithms.work import perform
from peer.algorithms.workspace import Workspace
from peer.core.decisions import AlgorithmState
from peer.core.messages import ModelHeader, Numbers, Pass, Select
from peer.core.model_store import ModelStore
from peer.core.schema import Schema, TensorSpec
from tests.unit.algorithms.engines import World

SAMPLES = 137
SCHEMA = Schema((TensorSpec("weight", (4,)),))


class Shard:
    """A learner of 137 samples whose losses and updates are drawn at random."""

    schema = SCHEMA
    abilities = frozenset(ABILITIES)
    validates = False

    def __init__(self, peer_id):
        self.rng = np.random.default_rng(peer_id)

    def count(self, part="train"):
        return SAMPLES

    def labels(self, part="train"):
        return None

    started_from = None

    def initial_model(self, seed, slot=0):
        return np.random.default_rng(seed).standard_normal(4, np.float32)

    def mean_loss(self, theta, part="train"):
        return float(self.rng.random())

    def sample_losses(self, theta, part="train"):
        return self.rng.random(SAMPLES, np.float32)

    def train(self, theta, plan):
        return theta + self.rng.standard_normal(4, np.float32), SimpleNamespace(
            loss=1.0, metric=None, samples=SAMPLES, steps=1, numbers={}
        )

    def evaluate(self, theta, part="test"):
        return SimpleNamespace(metric=0.5, loss=1.0, samples=SAMPLES, more={})


class RealWork(World):
    """A world in which the algorithm itself works on tensors; no arrival changes them."""

    def __init__(self, graph):
        super().__init__(graph, select=lambda peer, t: 0)
        self.workspaces = {i: self.workspace(i) for i in graph.ids}

    def workspace(self, peer):
        algorithm, learner = self.engines[peer].state.algorithm, Shard(peer)
        models = ModelStore(algorithm.initial_models(learner)[0])
        made = Workspace(self.graph.manifest, peer, self.graph, learner, models, AlgorithmState())
        made.state = algorithm.begin(made)
        return made

    def worked(self, peer, work):
        return perform(work, self.engines[peer].state.algorithm, self.workspaces[peer], lambda: 0.0).state


def numbers(message):
    """Return every number in a message, those of the algorithm included."""
    found = []
    for field in fields(message):
        value = getattr(message, field.name)
        if isinstance(value, Numbers):
            found += value
        elif not isinstance(value, str):
            found.append(value)
    return found


def run_of(pace, **options):
    made = make_graph("complete", 3, seed=3)
    manifest = Manifest(
        algorithm="fedspd",
        clusters=2,
        rounds=6,
        pace=pace,
        participation=0.8,
        options={"sketch_size": 8, "align_every": 2, "personalize": "average"} | options,
        final={"epochs": 1},
    )
    world = RealWork(Graph(made.nodes, made.edges, manifest)).run()
    assert set(world.stopped.values()) == {"completed"} and len(world.stopped) == 3
    messages = [message for _, _, message in world.sent]
    assert {type(message) for message in messages} >= {Select, ModelHeader}
    assert any(isinstance(message, Pass) for message in messages) == (pace == "lockstep")
    assert any(isinstance(message, Select) and message.numbers for message in messages)
    return messages


@pytest.mark.parametrize("pace", ["lockstep", "async"])
@pytest.mark.parametrize("noisy_self", [True, False])
@pytest.mark.parametrize("first_round", ["paper", "all_clusters"])
def test_no_message_of_a_private_run_carries_a_sample_count(pace, noisy_self, first_round):
    options = {"dp_epsilon": 10.0, "min_cluster_samples": 5, "noisy_self": noisy_self, "first_round": first_round}
    for message in run_of(pace, **options):
        assert SAMPLES not in numbers(message), message
        assert not isinstance(message, ModelHeader) or message.sample_count == 1


def test_models_of_a_run_without_privacy_carry_the_sample_count():
    """The search above does find a count."""
    found = [message for message in run_of("lockstep", first_round="paper") if SAMPLES in numbers(message)]
    assert found and all(isinstance(message, ModelHeader) for message in found)
