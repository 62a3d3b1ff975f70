"""DFCA computes the paper's equations: the single-process reference, with PyTorch, against a float64 oracle in NumPy.

The simulation and the process tests show that the engine equals the reference bit for bit.
"""

import numpy as np
import pytest
from torch import nn

from coordinator_free_bootstrap import Manifest, make_graph
from peer.learning.learner import TorchLearner
from peer.tasks.shard import Shard
from peer.tasks.task import Task
from tests.oracle import dfca_float64 as oracle
from tests.oracle.reference import Reference, run_reference

FEATURES, CLASSES, PEERS, ROUNDS = 5, 3, 6, 6
SEED = 2  # both clusters are used in every case


class Blobs(Task):
    """Three classes in five dimensions; every second peer has shifted labels."""

    kind, classes = "classification", CLASSES

    def make_model(self):
        return nn.Linear(FEATURES, CLASSES)

    def load_shard(self, peer_id):
        rng = np.random.default_rng(peer_id)
        y = np.arange(24) % CLASSES
        centers = np.random.default_rng(99).normal(0, 1, (CLASSES, FEATURES))
        x = (centers[(y + peer_id % 2) % CLASSES] + rng.normal(0, 0.5, (24, FEATURES))).astype(np.float32)
        return Shard(train_x=x, train_y=y.astype(np.int64), test_x=x, test_y=y.astype(np.int64))


def as_oracle(theta):
    """From torch's order (weight [classes, features], bias) to the oracle's (weight [features, classes], bias)."""
    weight = theta[: FEATURES * CLASSES].reshape(CLASSES, FEATURES).T
    return np.concatenate([weight.ravel(), theta[FEATURES * CLASSES :]]).astype(np.float64)


@pytest.mark.parametrize("initialization", ["global", "local"])
@pytest.mark.parametrize("aggregation", ["sequential", "batch"])
@pytest.mark.parametrize("relay", [(0, 1), (3, 1), (3, 3), (6, 2)])
def test_the_reference_follows_the_oracle(initialization, aggregation, relay):
    warmup, steps = relay
    run = Manifest(
        algorithm="dfca",
        clusters=2,
        rounds=ROUNDS,
        local_epochs=4,
        batch_size="all",
        learning_rate=0.2,
        aggregation=aggregation,
        options={"initialization": initialization, "warmup_rounds": warmup, "relay_steps": steps},
        seed=SEED,
    )
    graph = make_graph("erdos-renyi", PEERS, p=0.5, seed=3, manifest=run)
    task = Blobs()
    learners = {i: TorchLearner(task, task.load_shard(i)) for i in graph.ids}
    initial = [peer.models.copy() for peer in Reference(graph, learners).peers.values()]
    found = run_reference(graph, learners)
    data = [(shard.train_x.astype(np.float64), shard.train_y) for shard in map(task.load_shard, graph.ids)]
    models, clusters = oracle.run(
        data,
        CLASSES,
        [[as_oracle(theta) for theta in models] for models in initial],
        [graph.neighbors(i) for i in graph.ids],
        ROUNDS,
        tau=4,
        learning_rate=0.2,
        aggregation=aggregation,
        warmup=warmup,
        relay_steps=steps,
    )
    assert [found[i].cluster for i in graph.ids] == clusters
    assert len(set(clusters)) == 2, "the comparison needs both clusters in use"
    for i in graph.ids:
        for slot in range(2):
            assert np.abs(as_oracle(found[i].models[slot]) - models[i][slot]).max() < 2e-5
