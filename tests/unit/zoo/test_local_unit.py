"""``run.local_unit = "step"``: with each algorithm, peers with many and with few samples take equally many steps in a round."""

from __future__ import annotations

import pytest

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from peer.algorithms.registry import algorithms
from tests.tools.simulated import finish, peers_of

SIZES = (20, 80, 400)  # samples of the peers
STEPS, BATCH, ROUNDS = 3, 10, 2
TASK = f"""
import numpy as np
from torch import nn

from peer.tasks import Shard, Task


class Unequal(Task):
    classes = 2

    def make_model(self):
        return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))

    def load_shard(self, peer_id):
        draw = np.random.default_rng(peer_id)
        x = draw.normal(size=({SIZES}[peer_id], 4)).astype(np.float32)
        y = (x[:, 0] > 0).astype(np.int64)
        return Shard(train_x=x, train_y=y, test_x=x[:10], test_y=y[:10], val_x=x[:8], val_y=y[:8])


task = Unequal()
"""
# what takes steps in a round, where it is not one training of one model
TRAININGS = {
    "fedem": 2,  # M models
    "ditto": 2,  # v and w
    "fedrep": 2,  # head and body
    "apfl": 2,  # w and the mixture, on each batch
    "perfedavg": 2,  # w' and w
    "pfedme": 5,  # S steps on each batch
    "cgpfl": 5,
    "blend": 3,  # cluster, shared and own model
}
KINDS = {name: kind for name, kind in algorithms().items() if kind.__module__.startswith("peer.")}


OWN_LOOP = TASK.replace(
    "\n\ntask = ",
    """
    def train(self, model, data, budget):
        optimizer, taken = torch.optim.SGD(model.parameters(), budget.learning_rate), 0
        x, y = torch.from_numpy(np.array(data.train_x)), torch.from_numpy(np.array(data.train_y))
        steps = budget.steps or budget.epochs * -(-len(x) // 10)  # the trial before the run has epochs
        while taken < steps and not budget.should_stop():
            rows = torch.randperm(len(x))[:10]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
            taken += 1
        return Trained(numbers={"epochs": -1 if budget.epochs is None else budget.epochs, "rate": budget.learning_rate})


task = """,
).replace("from peer.tasks import Shard, Task", "import torch\n\nfrom peer.tasks import Shard, Task, Trained")


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "unequal.py"
    path.write_text(TASK)
    return f"{path}:task"


def steps_of(task, name, **changes):
    """Return the steps of each peer in each round, and the peers: [round][peer]."""
    made = make_graph("complete", len(SIZES))
    own = {
        "fedspd": {"options": {"first_round_factor": 1, "hard_rounds": ROUNDS}, "final": {"epochs": 0}},
        "blend": {"options": {"initialization": "global", "warmup_rounds": 0, "tune_epochs": 1}},
        "dpfl": {"options": {"initial_epochs": STEPS}},
        "pfedme": {"options": {"rho": 0.1}},
        "cgpfl": {"options": {"rho": 0.1}},
    }.get(name, {})
    run = dict(algorithm=name, task=task, rounds=ROUNDS, local_epochs=STEPS, batch_size=BATCH, local_unit="step")
    peers = peers_of(Graph(made.nodes, made.edges, Manifest(**(run | own | changes))))
    steps = {}
    for peer in peers:
        count_steps(peer, steps)
    finish(peers)
    return [[steps[t, i] for i in range(len(SIZES))] for t in range(ROUNDS)], peers


def count_steps(peer, steps):
    """Note the optimizer steps of each training of a peer: (round, peer) -> steps."""
    algorithm, learner = peer.algorithm.train, peer.learner.train

    def train(workspace):
        done = []

        def counted(theta, plan):
            model, stats = learner(theta, plan)
            done.append(stats.steps)
            return model, stats

        peer.learner.train = counted
        fields = algorithm(workspace)
        peer.learner.train = learner
        steps[workspace.round_index, peer.peer_id] = sum(done)
        return fields

    peer.algorithm.train = train


@pytest.mark.parametrize("name", sorted(KINDS))
def test_peers_of_all_sizes_take_the_same_steps(task, name):
    steps, peers = steps_of(task, name)
    expected = 1 if name == "dpsgd" else STEPS * TRAININGS.get(name, 1)
    rounds = 1 if name == "blend" else ROUNDS  # in the second round it tunes, for epochs
    assert steps[:rounds] == [[expected] * len(SIZES)] * rounds
    for peer, size in zip(peers, SIZES, strict=True):
        assert peer.state.sample_count == size, "what weighs an average is the number of samples"


@pytest.mark.parametrize("name", sorted(KINDS.keys() - {"dpsgd"}))
def test_in_epochs_a_peer_with_more_samples_takes_more(task, name):
    for small, _, large in steps_of(task, name, local_unit="epoch")[0]:
        assert large >= 10 * small > 0


def test_a_round_of_steps_takes_a_new_order_of_the_samples_and_its_first_batches(task):
    """Rounds of fewer steps than an epoch see other samples each time."""
    _, peers = steps_of(task, "dfedavg")
    learner = peers[-1].learner
    seen = []
    for round_index in range(ROUNDS):
        peers[-1].workspace.round_index = round_index
        batches = [batch.tolist() for batch in learner.batches(peers[-1].workspace.slot_plan(0))]
        assert [len(batch) for batch in batches] == [BATCH] * STEPS
        seen.append({index for batch in batches for index in batch})
    assert [len(each) for each in seen] == [BATCH * STEPS] * ROUNDS and len(seen[0] | seen[1]) > 1.5 * BATCH * STEPS
    small = peers[0].learner
    batches = [batch.tolist() for batch in small.batches(peers[0].workspace.slot_plan(0))]
    assert sorted(batches[0] + batches[1]) == list(range(SIZES[0])) and len(batches) == STEPS, "two passes"


@pytest.mark.parametrize("name", ["dfedavg", "ditto", "pfedme"])
def test_an_own_loop_gets_steps_in_place_of_epochs_and_the_rate_of_the_round(tmp_path, name):
    path = tmp_path / "loop.py"
    path.write_text(OWN_LOOP)
    changes = {"learning_rate": 0.2, "learning_rate_schedule": "step:factor=0.5"}
    steps, peers = steps_of(f"{path}:task", name, **changes)
    expected = STEPS * (2 if name == "ditto" else 1)
    assert steps == [[expected] * len(SIZES)] * ROUNDS
    for peer in peers:
        assert [row["train_numbers"] for row in peer.history] == [{"epochs": -1, "rate": rate} for rate in (0.2, 0.1)]
        assert [row["learning_rate"] for row in peer.history] == [0.2, 0.1]
